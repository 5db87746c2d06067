"""``python -m tests.types``: an error is found in each of the three folders, and where it is."""

from tests import types

WRONG = """from {other} import name

number: int = name
"""


def test_every_folder_is_checked_as_part_of_one_package(tmp_path, capsys):
    folders = {"tvm_scan": "tvm_scan", "schedules": "tvm_scan.schedules", "meta": "tvm_scan.meta"}
    for folder in folders:
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").write_text("name: str = ''\n")
    others = zip(folders, [*folders.values()][1:] + ["tvm_scan"], strict=True)
    for folder, other in others:
        (tmp_path / folder / "wrong.py").write_text(WRONG.format(other=other))
    assert types.main([], tmp_path) == 1
    report = capsys.readouterr().out
    for folder in folders:
        assert f"\n{folder}/wrong.py:3: error: Incompatible types" in f"\n{report}"
    assert "Found 3 errors in 3 files (checked 6 source files)" in report

    (tmp_path / "tvm_scan" / "wrong.py").unlink()  # its link is left over
    for folder in ("schedules", "meta"):
        (tmp_path / folder / "wrong.py").write_text("number: int = 0\n")
    assert types.main([], tmp_path) == 0
