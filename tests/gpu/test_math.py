"""Fast math: what compiles for CUDA here turns it off, what that changes, and by how much."""

import ast
import os
import re
import sys
import types
from collections import Counter

import numpy as np
import pytest
from tvm.support import nvcc as tvm_nvcc

from tests.support.cuda_harness import CUDA_TARGET, emit_cuda
from tests.support.cusim import nvcc
from tests.unit.test_arrows import FOLDERS, ROOT
from tvm_scan import ScanPlan, cuda_math, library, parallelize
from tvm_scan.relax import cubins

FLAG = "--use_fast_math"
VARIABLE = "TVM_CUDA_NVCC_NO_FAST_MATH"
ONE_THREAD = ScanPlan.of("cuda", "lanes", threads_per_block=128)
TWO_THREADS = ScanPlan.parse(
    "cuda/lanes(threads_per_block=64, items_per_thread=4, vector_loads=True, threads_per_lane=2, "
    "block_load=transposed, stages=2)"
)

# ---- options ------------------------------------------------------------------------------------


@pytest.fixture
def options_of_nvcc(monkeypatch, tmp_path):
    """The options that TVM hands to nvcc, of which there is none but this one."""
    told = tmp_path / "options"
    fake = tmp_path / "nvcc"
    fake.write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$@" > {told}\n'
        'while [ "$1" != -o ]; do shift; done\nprintf cubin > "$2"\n'
    )
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.delenv("TVM_SCAN_FAST_MATH", raising=False)
    return lambda: told.read_text().split("\n")


def compiled(compiler="nvcc"):
    with CUDA_TARGET:
        tvm_nvcc.compile_cuda("//", target_format="cubin", arch="sm_90", compiler=compiler)


def test_nvcc_is_told_nothing_of_fast_math(options_of_nvcc, monkeypatch):
    compiled()
    assert FLAG in options_of_nvcc(), "TVM's own default has changed: so may cuda_math.py"
    with cuda_math.exact_math():
        compiled()
    assert FLAG not in options_of_nvcc()
    assert VARIABLE not in os.environ
    assert cubins._cubin("//", CUDA_TARGET) == b"cubin"
    assert FLAG not in options_of_nvcc()
    monkeypatch.setenv("TVM_SCAN_FAST_MATH", "1")
    assert cubins._cubin("//", CUDA_TARGET) == b"cubin"
    assert FLAG in options_of_nvcc()


def test_nor_is_nvrtc(monkeypatch, tmp_path):
    """TVM has no variable for it; the functions that the flag replaces stay replaced."""
    seen = []
    fake = types.ModuleType("cuda.bindings.nvrtc")
    fake.__spec__ = types.SimpleNamespace(name=fake.__name__)
    fake.nvrtcResult = types.SimpleNamespace(NVRTC_SUCCESS=0)
    fake.nvrtcCreateProgram = lambda *_: (0, "program")
    fake.nvrtcDestroyProgram = lambda *_: (0,)
    fake.nvrtcGetCUBINSize = lambda *_: (0, 1)
    fake.nvrtcGetCUBIN = lambda *_: (0,)

    def compile_program(_program, count, options):
        assert count == len(options)
        seen.append(options)
        return (0,)

    fake.nvrtcCompileProgram = compile_program
    package = types.ModuleType("cuda.bindings")
    package.nvrtc = fake
    package.__path__ = []
    outer = types.ModuleType("cuda")
    outer.bindings, outer.__path__ = package, []
    for module in (outer, package, fake):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "cuda_runtime.h").write_text("")
    monkeypatch.setattr(tvm_nvcc, "find_cuda_path", lambda: str(tmp_path))
    monkeypatch.delenv("TVM_SCAN_FAST_MATH", raising=False)
    compiled("nvrtc")
    with cuda_math.exact_math():
        compiled("nvrtc")
    assert fake.nvrtcCompileProgram is compile_program
    assert [FLAG.encode() in options for options in seen] == [True, False]


def test_the_environment_is_as_it_was_after_an_error(monkeypatch):
    monkeypatch.setenv(VARIABLE, "")

    def fail():
        with cuda_math.exact_math():
            assert os.environ[VARIABLE] == "1"
            raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        fail()
    assert os.environ[VARIABLE] == ""


#: Calls of ``tvm.compile`` that are for CPUs only.
FOR_CPUS = {
    "meta/measure/check.py": 1,
    "schedules/associative.py": 1,
    "schedules/calibration/clock.py": 1,
    "schedules/verification/laws.py": 1,
    "schedules/verification/verify.py": 1,  # of the loop; the scan's goes through the module
    "tvm_scan/cli/support/roof.py": 1,
    "tvm_scan/torch/kernels/building.py": 1,
    "tvm_scan/torch/compiled/call.py": 1,
    "tvm_scan/torch/compiled/small.py": 1,
}


def test_all_that_compiles_for_cuda_goes_through_the_module():
    names = ("tvm.compile", "tvm.build", "relax.build", "tvm.tirx.build", "tvm.relax.build")
    found = Counter()
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and ast.unparse(node.func) in names:
                    found[str(path.relative_to(ROOT))] += 1
    assert found.pop("tvm_scan/cuda_math.py") == 2
    assert found == FOR_CPUS, "code for CUDA is compiled by tvm_scan.cuda_math.build"


# ---- what it changes ----------------------------------------------------------------------------


@pytest.mark.skipif(not nvcc.nvcc_available(), reason="nvcc is missing: no PTX to read")
def test_what_the_flag_makes_of_a_walk():
    """Off: what the plan itself asks for, and IEEE division elsewhere. On: all else approximate."""
    func = library.selective_scan(8, 2048, 2048, 16)
    shared = emit_cuda(parallelize(func, CUDA_TARGET, TWO_THREADS))
    alone = emit_cuda(parallelize(func, CUDA_TARGET, ONE_THREAD))

    def special(source, *options):
        ptx = nvcc.compile_ptx(source, options=options)
        return Counter(re.findall(r"\b(?:div|ex2|rcp|(?:\w+\.)+ftz)[\w.]*", ptx))

    off, on = special(shared), special(shared, FLAG)
    # One division of a lane, before its first step: how many equal steps its first exponent is.
    assert off.pop("div.rn.f32") == on["div.approx.ftz.f32"] == 1
    assert off.keys() == {"ex2.approx.ftz.f32", "rcp.approx.ftz.f32"}
    assert {key: on[key] for key in off} == off
    assert {"add.ftz.f32", "mul.ftz.f32", "fma.rn.ftz.f32"} <= on.keys()
    off, on = special(alone), special(alone, FLAG)
    assert off["div.rn.f32"] and on["div.approx.ftz.f32"] == off["div.rn.f32"]
    assert "div.rn.f32" not in on


# ---- by how much --------------------------------------------------------------------------------

LOG2E = np.float32(1.4426950408889634)


def test_the_error_of_a_fast_exponential():
    """``exp2`` of a product that was rounded, as the flag makes it, and by the formula.

    A product p is off by half an ulp and by that of log2(e), 2^-25.7 of it; ``exp2`` makes a
    relative error of ln 2 times that. Its own 2 ulp come on top, on a device.
    """
    x = np.linspace(-87, 88, 200_001, dtype="float32")
    product = x * LOG2E
    got = np.exp2(product.astype("float64"))
    want = np.exp(x.astype("float64"))
    error = np.abs(got / want - 1)
    half_ulp = np.spacing(np.abs(product)).astype("float64") / 2
    bound = np.log(2) * (half_ulp + np.abs(product) * 2.0**-25.7) * (1 + 1e-6)
    assert (error <= bound).all()
    # 32 ulp at the ends, and less than one ulp for the arguments of a gate near one.
    assert 2.0**-19 < error.max() < 2.0**-17
    assert error[np.abs(x) < 0.5].max() < 2.0**-24
