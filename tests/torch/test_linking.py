"""A kernel's library is made by the linker itself, or by a compiler where there is none to use."""

import shutil

import pytest
import tvm
from tvm.support import cc

from tvm_scan import library
from tvm_scan.torch.kernels import linking

pytestmark = pytest.mark.skipif(not shutil.which("ld"), reason="no linker")


@pytest.fixture
def compilers(monkeypatch):
    """Libraries that a compiler was asked for."""
    asked, link = [], cc.create_shared

    def create_shared(output, objects, **options):
        asked.append(output)
        link(output, objects, **options)

    monkeypatch.setattr(cc, "create_shared", create_shared)
    return asked


def exported(path):
    """The path of a library of a function that calls one of mathematics."""
    func = library.selective_scan(1, 4, 9, 2).with_attr("global_symbol", "main")
    tvm.compile(func, target="llvm").export_library(str(path), fcompile=linking.link)
    return path


def test_no_compiler_is_asked(tmp_path, compilers):
    assert tvm.runtime.load_module(str(exported(tmp_path / "kernel.so")))["main"]
    assert compilers == []


@pytest.mark.parametrize("missing", ["linker", "libgcc", "a linker that works"])
def test_what_the_linker_cannot_do_a_compiler_does(tmp_path, compilers, monkeypatch, missing):
    if missing == "linker":
        monkeypatch.setattr(linking.shutil, "which", lambda name: None)
    elif missing == "libgcc":
        monkeypatch.setattr(linking, "_libgcc", lambda: "")
    else:
        monkeypatch.setattr(linking.shutil, "which", lambda name: "false")
    path = exported(tmp_path / "kernel.so")
    assert tvm.runtime.load_module(str(path))["main"]
    assert compilers == [str(path)]
