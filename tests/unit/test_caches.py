"""What is kept on disk is found again by all that it depends on, so that no hit can be wrong."""

import numpy as np
import pytest
import tvm
from tvm.script import tirx as T

import tvm_scan
from tests import ROOT
from tests.support import compiled, cusim
from tests.support.cuda_harness import (
    CUDA_TARGET,
    compile_cuda,
    emit_cuda,
    emitted_source,
    run_cuda,
)
from tests.support.cusim import _toolchain, nvcc
from tests.unit.test_arrows import imports_of, module_name, sources
from tvm_scan import library, parallelize

MODULES = {module_name(path): path for path in sources()}
#: Builds kernels.
ROOTS = ("tvm_scan.loops", "tvm_scan.torch.kernels.building")


def imported(module):
    """Modules of the package that a module names, also inside functions."""
    path = MODULES[module]
    if module == "tvm_scan":
        return  # the public names, each imported where it is first used
    for one in imports_of((ROOT / path).read_text(), module, path.stem == "__init__"):
        name = one.name
        public = name.removeprefix("tvm_scan.")
        name = tvm_scan._HOMES.get(public, name)
        while name and name not in MODULES:
            name = name.rpartition(".")[0]
        if name:
            yield name


def test_the_key_of_a_kernel_holds_every_source_that_can_change_it():
    pytest.importorskip("torch")
    from tvm_scan.torch.kernels.digest import KERNEL_SOURCES, package_files

    reached, todo = set(), list(ROOTS)
    while todo:
        module = todo.pop()
        if module not in reached:
            reached.add(module)
            todo += imported(module)
    in_key = {path.resolve() for _, path in package_files(KERNEL_SOURCES)}
    missing = {m for m in reached if (ROOT / MODULES[m]).resolve() not in in_key}
    assert not missing
    assert len(reached) > 100
    # What cannot change a kernel is not in its key.
    assert not {ROOT / "tvm_scan" / "cli" / "app.py", ROOT / "meta" / "search" / "tune.py"} & in_key


def test_a_changed_source_changes_the_key_of_a_kernel(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    from tvm_scan.torch.kernels import digest

    one = tmp_path / "lanes.py"
    monkeypatch.setattr(digest, "package_files", lambda _: [("schedules/common/lanes.py", one)])
    digests = []
    for text in ("a = 1\n", "a = 2\n", "a = 1\n"):
        one.write_text(text)
        digests.append(digest.source_digest.__wrapped__())
    assert digests[0] == digests[2] != digests[1]


def test_the_simulated_devices_kernels_are_found_by_source_and_builder(monkeypatch):
    key = _toolchain.module_key("source")
    assert key == _toolchain.module_key("source") != _toolchain.module_key("source ")
    monkeypatch.setattr(_toolchain, "fingerprint", lambda: "another builder")
    assert _toolchain.module_key("source") != key


@pytest.mark.skipif(not nvcc.nvcc_available(), reason="no nvcc whose results to keep")
def test_results_of_nvcc_are_found_by_source_options_and_version(monkeypatch, tmp_path):
    monkeypatch.setattr(_toolchain, "cache_directory", lambda: tmp_path)
    (tmp_path / "kernels").mkdir()
    calls = []
    run = nvcc.subprocess.run

    def counted(command, **options):
        calls.append(command)
        return run(command, **options)

    monkeypatch.setattr(nvcc.subprocess, "run", counted)
    nvcc._version.cache_clear()
    source = '#include <cuda_runtime.h>\nextern "C" __global__ void f(float* x) { x[0] = 1; }\n'

    def compilations(*arguments):
        before = sum("-arch" in " ".join(c) for c in calls)
        made = nvcc.compile_resources(*arguments)
        assert made["f"].spill_stores == 0
        return sum("-arch" in " ".join(c) for c in calls) - before

    assert compilations(source) == 1
    assert compilations(source) == 0
    assert compilations(source.replace("= 1", "= 2")) == 1
    assert compilations(source, "sm_80") == 1
    monkeypatch.setattr(nvcc, "_version", lambda _: "another version")
    assert compilations(source) == 1
    with pytest.raises(RuntimeError, match="rejected"):
        nvcc.compile_resources("no CUDA")
    assert len(list((tmp_path / "kernels").iterdir())) == 4


def adds(constant):
    @T.prim_func(s_tir=True)
    def main(X: T.Buffer((4,), "int32"), Y: T.Buffer((4,), "int32")):
        for i in range(4):
            Y[i] = X[i] + constant

    return main


def called(built, dtype="int32"):
    x, y = (tvm.runtime.tensor(np.arange(4, dtype=dtype)) for _ in range(2))
    built(x, y)
    return y.numpy().tolist()


def test_a_program_is_compiled_once_and_others_are_not_taken_for_it(tmp_path, monkeypatch):
    monkeypatch.setattr(compiled, "_folder", lambda: tmp_path)
    calls = []
    build = tvm.compile
    monkeypatch.setattr(compiled.tvm, "compile", lambda *a, **o: calls.append(a) or build(*a, **o))
    for constant in (1, 2, 1, 2):
        got = called(compiled.compile_cached(adds(constant), "llvm"))
        assert got == [constant, constant + 1, constant + 2, constant + 3]
    assert len(calls) == len(list(tmp_path.iterdir())) == 2


@pytest.mark.skipif(not cusim.is_simulated(), reason="TVM compiles for a real GPU itself")
def test_source_that_is_only_read_is_that_of_what_runs(tmp_path, monkeypatch):
    """And what was not built for a reader is built for who runs it."""
    monkeypatch.setattr(compiled, "_folder", lambda: tmp_path)
    func = parallelize(library.cumsum(3, 100), CUDA_TARGET)
    text = emit_cuda(func)
    assert text == emit_cuda(func) and [path.suffix for path in tmp_path.iterdir()] == [".json"]
    x = np.ones((3, 100), "float32")
    built = compile_cuda(func)
    assert emitted_source(built) == text
    np.testing.assert_array_equal(
        run_cuda(func, [x, np.zeros_like(x)], executable=built)[1], x.cumsum(1)
    )


def test_what_is_left_out_is_in_the_key(tmp_path, monkeypatch):
    """Checks and optimisations, each of which is drawn."""
    monkeypatch.setattr(compiled, "_folder", lambda: tmp_path)
    for share in (True, False):
        monkeypatch.setattr(compiled, "drawn", lambda *_, share=share: share)
        for plainly in (False, True):
            built = compiled.compile_cached(adds(1), "llvm", plainly=plainly)
            assert called(built) == [1, 2, 3, 4]
    # With all drawn, both calls are the same; else optimised or not.
    assert len(list(tmp_path.iterdir())) == 3


def test_the_key_of_a_program_holds_target_options_and_compilers(monkeypatch):
    target = tvm.target.Target("llvm")
    key = compiled.key_of(adds(1), target)
    assert (
        key
        == compiled.key_of(adds(1), tvm.target.Target("llvm"))
        != compiled.key_of(adds(2), target)
    )
    others = [
        compiled.key_of(adds(1), tvm.target.Target({"kind": "llvm", "mcpu": "haswell"})),
        compiled.key_of(adds(1), tvm.target.Target({"kind": "llvm", "opt-level": 0})),
    ]
    with tvm.transform.PassContext(config={"tirx.disable_vectorize": True}):
        others.append(compiled.key_of(adds(1), target))
    with tvm.transform.PassContext(disabled_pass=["tirx.RemoveNoOp"]):
        others.append(compiled.key_of(adds(1), target))
    with tvm.transform.PassContext(opt_level=1):
        others.append(compiled.key_of(adds(1), target))
    monkeypatch.setattr(compiled, "_compilers", lambda: "another version")
    others.append(compiled.key_of(adds(1), target))
    assert len({key, *others}) == len(others) + 1


def test_a_half_written_library_is_never_found(tmp_path, monkeypatch):
    monkeypatch.setattr(compiled, "_folder", lambda: tmp_path)

    def fails(*_):
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(compiled, "_link", fails)
        with pytest.raises(OSError, match="disk full"):
            compiled.compile_cached(adds(3), "llvm")
    assert list(tmp_path.iterdir()) == []
    assert called(compiled.compile_cached(adds(3), "llvm")) == [3, 4, 5, 6]
