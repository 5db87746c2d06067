"""Running and checking the CUDA kernels that the tests emit."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import tvm
from tvm.target import Target

from tests.support import cusim
from tests.support.compiled import compile_cached, emit_cached, sources_of
from tests.support.cusim import nvcc
from tests.support.recurrence_cases import Case, check_exact, exact_inputs
from tests.support.tiers import drawn
from tvm_scan import ScanPlan, parallelize

__all__ = [
    "CUDA_TARGET",
    "check_nvcc",
    "compile_cuda",
    "emit_cuda",
    "emitted_source",
    "in_every_order",
    "run_cuda",
    "run_exactly",
]

CUDA_TARGET = Target(
    {
        "kind": "cuda",
        "arch": "sm_90",
        "max_threads_per_block": 1024,
        "max_shared_memory_per_block": 49152,
    },
    host={"kind": "llvm"},
)
#: The same device; the host's code, which checks arguments and launches, is not optimised, which
#: takes LLVM a quarter of the time.
_COMPILED_FOR = Target({**CUDA_TARGET.export(), "host": {"kind": "llvm", "opt-level": 0}})


#: An order in which blocks that can wait for each other do: several are held, the last one first.
WAITING = 1
#: What a kernel has whose blocks depend on their order.
_MEETS_OTHERS = re.compile(r"ld_acquire|st_release|atomic")


def _runs(
    seeds: Sequence[int], sources: Sequence[str], race: bool = True
) -> list[tuple[int, bool]]:
    """Orders, and whether the race detector watches them: the first one, and it comes first.

    What happens before what is the same in every order, but where blocks may wait for each other:
    there it also watches one in which they do.
    """
    watched = list(seeds[:1]) if race else []
    if watched and any(_MEETS_OTHERS.search(source) for source in sources):
        watched = list(dict.fromkeys([*watched, WAITING]))
    return [(seed, True) for seed in watched] + [(s, False) for s in seeds if s not in watched]


def compile_cuda(func_or_mod: tvm.tirx.PrimFunc | tvm.IRModule) -> tvm.runtime.Executable:
    """Compiles a scheduled function for the device; its name is ``main`` if it has none."""
    return compile_cached(_module(func_or_mod), _COMPILED_FOR)


def emit_cuda(func_or_mod: tvm.tirx.PrimFunc | tvm.IRModule) -> str:
    """The CUDA source of a scheduled function that is not run, as `emitted_source` gives it."""
    return emit_cached(_module(func_or_mod), _COMPILED_FOR)[0]


def _module(func_or_mod: tvm.tirx.PrimFunc | tvm.IRModule) -> tvm.IRModule:
    if isinstance(func_or_mod, tvm.IRModule):
        return func_or_mod
    name = func_or_mod.attrs.get("global_symbol") if func_or_mod.attrs else None
    name = str(name) if name is not None else "main"
    return tvm.IRModule({name: func_or_mod.with_attr("global_symbol", name)})


def emitted_source(executable: tvm.runtime.Executable) -> str:
    """The CUDA source of a compiled module."""
    return sources_of(executable)[0]


def in_every_order(
    call: Callable[[], Sequence[np.ndarray]], built: tvm.runtime.Executable
) -> list[np.ndarray]:
    """Calls a built model as `run_cuda` calls a function.

    Parameters
    ----------
    call
        Runs the model on fresh tensors and returns its results.
    built
        The model, whose kernels must compile to sm_90 without spills (`_draw_resources`).

    Returns
    -------
    list of numpy.ndarray
        The results, the same bits in every order of threads and under the race detector.
    """
    sources = sources_of(built)
    assert sources, "in_every_order: expected CUDA kernels in the model, got none"
    for source in sources:
        _draw_resources(source)
    first: list[np.ndarray] | None = None
    for seed, with_race in _runs((0, 1, 2), sources):
        with cusim.settings(seed=seed, race=with_race):
            results = list(call())
        first = first or results
        for expected, got in zip(first, results, strict=True):
            assert _same_bits(expected, got), f"other bits with seed {seed} than with seed 0"
    assert first is not None
    return first


def _entry(func_or_mod: tvm.tirx.PrimFunc | tvm.IRModule) -> str:
    if isinstance(func_or_mod, tvm.IRModule):
        names = [gv.name_hint for gv in func_or_mod.get_global_vars()]
        return "main" if "main" in names or len(names) != 1 else names[0]
    name = func_or_mod.attrs.get("global_symbol") if func_or_mod.attrs else None
    return str(name) if name is not None else "main"


def _same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


def run_cuda(
    func_or_mod: tvm.tirx.PrimFunc | tvm.IRModule,
    args: Sequence[np.ndarray],
    *,
    seeds: Sequence[int] = (0, 1, 2),
    race: bool = True,
    executable: tvm.runtime.Executable | None = None,
) -> list[np.ndarray]:
    """Runs a scheduled function and checks that the order of its threads does not matter.

    On the simulated device it runs once per seed, each of which orders threads and blocks
    differently and fills fresh memory with other rubbish, the first time under the race detector;
    a kernel whose blocks can wait for each other also in an order in which they do. On a real
    device it runs as often, in whatever order comes. Where there is an nvcc, the emitted source
    must also compile to an sm_90 cubin without spills (`_draw_resources`).

    Parameters
    ----------
    func_or_mod
        The function, or a module with one function or one called ``main``.
    args
        One array per parameter, outputs included; they are not changed.
    seeds
        Orders of threads and blocks, see :class:`cusim.Settings`; at least one.
    race
        Whether the race detector, which also checks bounds, watches the first run.
    executable
        What `compile_cuda` made of the function; for one that is run with many arguments.

    Returns
    -------
    list of numpy.ndarray
        All the arguments after the run, in order.

    Raises
    ------
    tvm.error.InternalError
        If a launch fails; the message holds the source lines of the race or barrier.
    AssertionError
        If two runs differ in a bit; the message names the argument and the seed.
    """
    executable = executable or compile_cuda(func_or_mod)
    has_kernel = len(executable.mod.imports) > 0  # none is left of a loop over nothing
    if has_kernel:
        _draw_resources(emitted_source(executable))
    function = executable[_entry(func_or_mod)]
    device = tvm.cuda(0)
    first: list[np.ndarray] | None = None
    # The detector first: its message says more than a difference.
    for seed, with_race in _runs(seeds, sources_of(executable), race):
        with cusim.settings(seed=seed, race=with_race):
            tensors = [tvm.runtime.tensor(array, device) for array in args]
            function(*tensors)
            device.sync()
            results = [tensor.numpy() for tensor in tensors]
        if first is None:
            first = results
        for index, (expected, got) in enumerate(zip(first, results, strict=True)):
            assert _same_bits(expected, got), (
                f"run_cuda: expected the same bits in every run, got another argument {index} "
                f"with seed {seed} than with seed {seeds[0]}: the result depends on the order of "
                f"threads or on memory that nobody wrote"
            )
    assert first is not None
    return first


def check_nvcc(func_or_mod: tvm.tirx.PrimFunc | tvm.IRModule) -> dict[str, nvcc.Resources]:
    """Compiles the emitted source to an sm_90 cubin and asserts that no kernel spills.

    Skips the test where there is no nvcc.
    """
    if not nvcc.nvcc_available():
        pytest.skip("nvcc is missing: registers and spills of the kernels are not checked")
    return _resources(emit_cuda(func_or_mod))


def _draw_resources(source: str) -> None:
    """Of one kernel in 24: what all schedules take stands in tests/golden/test_resources.py."""
    if nvcc.nvcc_available() and drawn(source, 24):
        _resources(source)


@functools.lru_cache(maxsize=256)
def _resources(source: str) -> dict[str, nvcc.Resources]:
    # What only later devices have is not for the first one.
    arch = "sm_100" if ".f32x2" in source else "sm_90"
    resources = nvcc.compile_resources(source, arch=arch)
    assert resources, "nvcc: expected a kernel in the emitted source, got none"
    for name, taken in resources.items():
        spilled = taken.spill_stores + taken.spill_loads
        assert spilled == 0, f"nvcc: expected no spills, got {taken} for {name}"
    return resources


def run_exactly(
    case: Case, plan: ScanPlan, lengths: Sequence[int], *, symbolic: bool = False
) -> None:
    """Runs a recurrence of the library by a plan on exact inputs, and compares with its twin.

    Parameters
    ----------
    case
        The recurrence.
    plan
        For CUDA.
    lengths
        Steps, one run for each.
    symbolic
        Whether one kernel takes all lengths.
    """
    for length in lengths:
        options, inputs, want = exact_inputs(case, length)
        if not symbolic or length == lengths[0]:
            func = case.function(None if symbolic else length, options)
            func = parallelize(func, CUDA_TARGET, plan)
            executable = compile_cuda(func)
        outputs = [np.full(array.shape, 77, case.dtype) for array in want.values()]
        got = run_cuda(func, [*inputs.values(), *outputs], executable=executable)
        check_exact(case, length, dict(zip(want, got[len(inputs) :], strict=True)))
