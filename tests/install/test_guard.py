"""The start-up guard, and the lightness of ``import tvm_scan``."""

import re
import subprocess
import sys
from importlib import metadata

import pytest

import tvm_scan
from tests import ROOT
from tvm_scan import _guard
from tvm_scan._guard import IncompatibleTVMError, check_versions, ensure_compatible

GOOD_TVM, GOOD_FFI = "0.27.0.post1", "0.1.14.post1"


@pytest.mark.parametrize("tvm", ["0.27.0", "0.27.0.post1", "0.27.3", "0.27", "0.27.0+local.1"])
@pytest.mark.parametrize("ffi", ["0.1.14.post0", "0.1.14.post1", "0.1.14.post12", "0.1.14.1"])
def test_working_pairs_pass(tvm, ffi):
    assert check_versions(tvm, ffi) is None


@pytest.mark.parametrize(
    "tvm", ["0.26.0", "0.28.0", "1.27.0", "0.27.0rc1", "0.27.dev0", "0.27.0.dev3", "?", ""]
)
def test_other_tvm_is_named_with_the_fix(tvm):
    sentence = check_versions(tvm, GOOD_FFI)
    assert sentence is not None
    assert f"got apache-tvm {tvm};" in sentence
    assert "pip install 'apache-tvm>=0.27.0,<0.28'" in sentence


@pytest.mark.parametrize(
    "ffi",
    [
        "0.1.13.post3",
        "0.1.14",  # comes before 0.1.14.post0
        "0.1.14rc1",
        "0.1.14.post0.dev1",
        "0.1.15.dev0",
        "0.1.15.post1",
        "0.1.15.post2",
        "0.2.0",
        "1.1.14.post0",
        "?",
    ],
)
def test_other_ffi_is_named_with_the_fix(ffi):
    sentence = check_versions(GOOD_TVM, ffi)
    assert sentence is not None
    assert f"got apache-tvm-ffi {ffi}," in sentence
    assert "crashes when it serialises a module" in sentence
    assert "'apache-tvm-ffi>=0.1.14.post0,<0.1.15'" in sentence


def test_missing_packages_are_named():
    assert "got no apache-tvm installed" in (check_versions(None, None) or "")
    assert "got no apache-tvm installed" in (check_versions(None, GOOD_FFI) or "")
    assert "got no apache-tvm-ffi installed" in (check_versions(GOOD_TVM, None) or "")


@pytest.mark.parametrize(("tvm", "ffi"), [(None, None), ("0.1", GOOD_FFI), (GOOD_TVM, "0.1.15")])
def test_the_answer_is_one_line(tvm, ffi):
    assert "\n" not in (check_versions(tvm, ffi) or "\n")


def test_this_environment_is_a_working_pair():
    ensure_compatible()


def test_guard_states_the_requirements_of_the_package():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'"{_guard.TVM_REQUIREMENT}"' in text
    assert f'"{_guard.FFI_REQUIREMENT}"' in text


def test_broken_pair_is_an_import_error(monkeypatch):
    versions = {"apache-tvm": GOOD_TVM, "apache-tvm-ffi": "0.1.15.post2"}
    monkeypatch.setattr(metadata, "version", versions.__getitem__)
    with pytest.raises(IncompatibleTVMError, match=r"got apache-tvm-ffi 0\.1\.15\.post2"):
        ensure_compatible()
    assert issubclass(IncompatibleTVMError, ImportError)


def test_missing_distribution_is_an_import_error(monkeypatch):
    def version(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    with pytest.raises(IncompatibleTVMError, match="got no apache-tvm installed"):
        ensure_compatible()


def run_python(code):
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_import_is_light():
    heavy = run_python(
        "import sys, os; before = dict(os.environ); import tvm_scan; dir(tvm_scan)\n"
        'assert dict(os.environ) == before, "changes the environment"\n'
        "print(*({'tvm', 'tvm_ffi', 'numpy', 'torch', 'tvm_scan.schedules'} & set(sys.modules)))"
    )
    assert heavy == []


def test_first_use_meets_the_guard_before_tvm_is_imported():
    out = run_python(
        "import sys; from importlib import metadata\n"
        "metadata.version = {'apache-tvm': '0.27.0', 'apache-tvm-ffi': '0.1.15'}.__getitem__\n"
        "import tvm_scan\n"
        "try:\n    tvm_scan.Recurrence\n"
        "except ImportError as error:\n"
        "    print(type(error).__name__, 'tvm' in sys.modules)\n"
    )
    assert out == ["IncompatibleTVMError", "False"]


def test_every_public_name_is_there():
    for name in tvm_scan.__all__:
        assert getattr(tvm_scan, name) is not None
    assert set(tvm_scan.__all__) <= set(dir(tvm_scan))
    assert set(tvm_scan._HOMES) == set(tvm_scan.__all__) - {"__version__"}


def test_extract_is_the_function_whatever_was_imported_before():
    out = run_python(
        "import tvm_scan.extraction\nfrom tvm_scan import extract\nprint(callable(extract))"
    )
    assert out == ["True"]
    assert not (ROOT / "tvm_scan" / "extract.py").exists()


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match=re.escape("'tvm_scan' has no attribute 'scans'")):
        _ = tvm_scan.scans
