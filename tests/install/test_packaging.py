"""What an install holds: the three folders as one package, nothing bare, the licence, the types."""

import email
import shutil
import subprocess
import sys
import zipfile
from importlib.resources import files

import pytest

from tests import ROOT
from tvm_scan._lean import without_torch
from tvm_scan._resources import licence_text

FOLDERS = {"tvm_scan": "tvm_scan", "schedules": "tvm_scan/schedules", "meta": "tvm_scan/meta"}


def copy_project(into):
    """A copy to build in: a build leaves folders in the tree, whose old files get into wheels."""
    into.mkdir()
    for name in ["pyproject.toml", "setup.py", "README.md", "LICENSE"]:
        shutil.copy(ROOT / name, into / name)
    for name in FOLDERS:
        shutil.copytree(ROOT / name, into / name, ignore=shutil.ignore_patterns("__pycache__"))
    return into


def build(project, hook, out):
    """Build one wheel through the standard hook, without isolation and so without a network."""
    out.mkdir()
    code = f"import sys, setuptools.build_meta as b; print(b.{hook}(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, str(out)],
        cwd=project,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The names in the wheel, and the folder in which it is unpacked."""
    base = tmp_path_factory.mktemp("wheel")
    path = build(copy_project(base / "project"), "build_wheel", base / "dist")
    with zipfile.ZipFile(path) as archive:
        archive.extractall(base / "site")
        return set(archive.namelist()), base / "site"


def run_outside(code, site, cwd):
    """Run code with this site folder only, away from the source tree and from any install."""
    lines = f"import site; site.addsitedir({str(site)!r})\n{code}"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", lines],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_wheel_holds_one_package_and_nothing_bare(wheel):
    names, _ = wheel
    assert {name.partition("/")[0] for name in names} == {"tvm_scan", "tvm_scan-0.1.0.dist-info"}


def test_wheel_holds_every_module_and_no_other(wheel):
    names, _ = wheel
    expected = {
        f"{target}/{path.relative_to(ROOT / folder).as_posix()}"
        for folder, target in FOLDERS.items()
        for path in (ROOT / folder).rglob("*.py")
    }
    built = {name for name in names if name.endswith(".py")}
    hint = "a folder without __init__.py is not found as a package"
    assert built == expected, hint


def test_wheel_holds_licence_types_and_script(wheel):
    names, site = wheel
    info = site / "tvm_scan-0.1.0.dist-info"
    assert "tvm_scan/py.typed" in names
    assert (info / "licenses" / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    assert "tvm-scan = tvm_scan.cli:main" in (info / "entry_points.txt").read_text()
    metadata = email.message_from_string((info / "METADATA").read_text(encoding="utf-8"))
    assert metadata["License-Expression"] == "Apache-2.0"
    assert set(metadata["Requires-Python"].split(",")) == {">=3.10", "<3.14"}
    extras = {"torch", "cuda", "tune", "onnx", "proof", "models", "test", "bench"}
    assert set(metadata.get_all("Provides-Extra")) == extras


def test_wheel_holds_the_files_of_pages(wheel):
    names, _ = wheel
    expected = {path.name for path in (ROOT / "tvm_scan/browser/files").iterdir()}
    held = {n.rpartition("/")[2] for n in names if n.startswith("tvm_scan/browser/files/")}
    assert held == expected >= {"scan.js", "scan.d.ts", "page.js"}


def test_wheel_holds_the_tuned_records(wheel):
    names, site = wheel
    folder = ROOT / "meta" / "records"
    expected = {
        f"tvm_scan/meta/records/{path.relative_to(folder).as_posix()}"
        for path in folder.rglob("*.json")
    }
    assert any(name.endswith("manifest.json") for name in expected)
    assert {name for name in names if "/records/" in name and "/meta/" in name} == expected
    assert sum((site / name).stat().st_size for name in expected) < 1 << 20


def test_wheel_works_where_it_is_unpacked(wheel, tmp_path):
    _, site = wheel
    code = (
        "import tvm_scan, tvm_scan.meta\n"
        "from tvm_scan._resources import licence_text, shipped_manifests\n"
        "print(tvm_scan.__file__, tvm_scan.meta.__file__, len(licence_text()), sep='\\n')\n"
        "print(len(shipped_manifests()))"
    )
    package, meta, length, manifests = run_outside(code, site, tmp_path)
    assert package == str(site / "tvm_scan" / "__init__.py")
    assert meta == str(site / "tvm_scan" / "meta" / "__init__.py")
    assert int(length) == len(licence_text())
    assert int(manifests) == len(list((ROOT / "meta" / "records").glob("*/manifest.json"))) > 0


def test_editable_install_maps_the_folders(tmp_path):
    project = copy_project(tmp_path / "project")
    path = build(project, "build_editable", tmp_path / "dist")
    with zipfile.ZipFile(path) as archive:
        archive.extractall(tmp_path / "site")
    # Written after the install: a new module or subpackage needs no second one.
    (project / "meta" / "later.py").write_text("")
    (project / "meta" / "deeper").mkdir()
    (project / "meta" / "deeper" / "__init__.py").write_text("")
    code = (
        "import importlib.util as u\n"
        "import tvm_scan.meta.later\n"
        "for name in ['tvm_scan', 'tvm_scan.schedules', 'tvm_scan.meta.deeper']:\n"
        "    print(u.find_spec(name).origin)\n"
        "print(tvm_scan.meta.__file__)\n"
        "print(u.find_spec('schedules'), u.find_spec('meta'))"
    )
    assert run_outside(code, tmp_path / "site", tmp_path) == [
        str(project / "tvm_scan" / "__init__.py"),
        str(project / "schedules" / "__init__.py"),
        str(project / "meta" / "deeper" / "__init__.py"),
        str(project / "meta" / "__init__.py"),
        "None None",
    ]


WHERE = (
    "from importlib.util import find_spec\n"
    "for name in ('tvm_scan', 'tvm_scan.schedules', 'tvm_scan.meta.store'):\n"
    "    print(find_spec(name).origin)"
)
DOORS = ["tvm_scan/__init__.py", "schedules/__init__.py", "meta/store/__init__.py"]


def first_on_the_path(folder):
    return f"import sys; sys.path.insert(0, {str(folder)!r})\n"


def test_a_checkout_hides_no_half_of_an_installation(wheel, tmp_path):
    """Python started in the root of a checkout takes all three folders from it."""
    clone = copy_project(tmp_path / "clone")
    want = [str(clone / door) for door in DOORS]
    for site in (wheel[1], tmp_path / "nothing installed"):
        assert run_outside(first_on_the_path(clone) + WHERE, site, clone) == want


def test_a_checkout_hides_no_half_of_another_one(tmp_path):
    one, other = copy_project(tmp_path / "one"), copy_project(tmp_path / "other")
    with zipfile.ZipFile(build(one, "build_editable", tmp_path / "dist")) as archive:
        archive.extractall(tmp_path / "site")
    found = run_outside(first_on_the_path(other) + WHERE, tmp_path / "site", other)
    assert found == [str(other / door) for door in DOORS]
    assert run_outside(WHERE, tmp_path / "site", tmp_path) == [str(one / door) for door in DOORS]


def test_a_worker_takes_what_its_search_takes(tmp_path, monkeypatch):
    """Started in the root of a checkout, it takes the installation that started it."""
    clone = copy_project(tmp_path / "clone")
    (tmp_path / "where.py").write_text("import tvm_scan; print(tvm_scan.__file__)")
    monkeypatch.setattr(sys, "path", [str(ROOT), *filter(None, sys.path), str(tmp_path)])
    command = without_torch([sys.executable, "-m", "where"])
    done = subprocess.run(command, cwd=clone, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(ROOT / "tvm_scan" / "__init__.py")


def test_half_a_checkout_is_named_with_the_fix(wheel, tmp_path):
    shutil.copytree(ROOT / "tvm_scan", tmp_path / "tvm_scan")
    code = (
        "try:\n    import tvm_scan.schedules\n"
        "except ModuleNotFoundError as error:\n    print(error.name, error, sep='\\n')"
    )
    name, said = run_outside(first_on_the_path(tmp_path) + code, wheel[1], tmp_path)
    assert name == "tvm_scan.schedules"
    assert "expected its folder schedules in" in said and "python -m pip install . in" in said


def test_licence_is_a_resource_and_the_same_as_at_the_root():
    assert licence_text().encode() == (ROOT / "LICENSE").read_bytes()
    assert "Apache License" in licence_text()
    assert files("tvm_scan").joinpath("py.typed").is_file()
