"""Functions that run in the worker processes of a search: build, check, time.

Importing this must stay cheap, since every worker does; in particular TVM's stock tensor
intrinsics (14 seconds) are not read.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import tvm
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.builder.local_builder import default_export
from tvm.s_tir.meta_schedule.runner.utils import run_evaluator_common
from tvm.support.popen_pool import MapResult, PopenPoolExecutor, StatusKind

from tvm_scan._lean import leave_torch_out_of_workers
from tvm_scan.cuda_math import build
from tvm_scan.errors import ScanError
from tvm_scan.meta.measure.check import Case, first_difference, load_cases
from tvm_scan.meta.measure.scratch import worker_initializer
from tvm_scan.schedules import expand_scans

leave_torch_out_of_workers()


def build_candidate(mod: tvm.IRModule, target: tvm.target.Target, _params: Any) -> Any:
    """Build one candidate; expands what a stock search space left annotated.

    Parameters
    ----------
    mod : IRModule
        The candidate.
    target : tvm.target.Target
        What to build for.
    """
    with target:
        return build(expand_scans(mod), target).mod


def evaluator_config() -> ms.runner.EvaluatorConfig:
    """Repeats of a measurement: five of at least 10 ms."""
    return ms.runner.EvaluatorConfig(number=1, repeat=5, min_repeat_ms=10)


def local_builder(
    *,
    workers: int = 1,
    timeout: float = 120.0,
    initializer: Callable[[], None] | None = None,
) -> ms.builder.Builder:
    """A builder of this machine, also for TVM's own ``tune_tir`` and ``tune_relax``.

    Its processes serve all batches. TVM's own starts new ones for each, which takes longer than
    the batch.

    Parameters
    ----------
    workers : int
        Processes, at least one.
    timeout : float
        Seconds for one candidate.
    initializer : callable, optional
        Runs first in every process.

    Returns
    -------
    Builder
        Compiles candidates after expanding their plans. Its ``pool`` of processes ends with it.

    Raises
    ------
    ValueError
        If there is not at least one worker.
    """
    pool = PopenPoolExecutor(
        max_workers=workers,
        timeout=timeout,
        initializer=worker_initializer(initializer),
        maximum_process_uses=_USES,
    )
    return _LocalBuilder(pool, timeout)


#: Candidates that a process builds before it is replaced: TVM's compiler keeps some memory.
_USES = 64


@derived_object
class _LocalBuilder(ms.builder.PyBuilder):
    def __init__(self, pool: PopenPoolExecutor, timeout: float) -> None:
        super().__init__()
        self.pool, self.timeout = pool, timeout

    def build(self, build_inputs: list[Any]) -> list[Any]:
        jobs = [(each.mod, each.target) for each in build_inputs]
        return [self._result(done) for done in self.pool.map_with_error_catching(_export, jobs)]

    def _result(self, done: MapResult) -> ms.builder.BuilderResult:
        if done.status == StatusKind.COMPLETE:
            return ms.builder.BuilderResult(done.value, None)
        if done.status == StatusKind.TIMEOUT:
            message = f"timeout: a candidate was not built in {self.timeout} seconds"
        else:
            message = str(done.value)
        return ms.builder.BuilderResult(None, f"builder: {message}")


def _export(job: tuple[tvm.IRModule, tvm.target.Target]) -> str:
    return str(default_export(build_candidate(*job, None)))


def local_runner(
    cases: Path,
    *,
    config: ms.runner.EvaluatorConfig | None = None,
    timeout: float = 120.0,
    initializer: Callable[[], None] | None = None,
) -> ms.runner.LocalRunner:
    """A runner of this machine that checks a candidate before it takes its time.

    Parameters
    ----------
    cases : Path
        What ``check.save_cases`` wrote.
    config : EvaluatorConfig, optional
        How often to run.
    timeout : float
        Seconds for one candidate.
    initializer : callable, optional
        Runs first in the process.
    """
    return ms.runner.LocalRunner(
        timeout_sec=timeout,
        evaluator_config=config or evaluator_config(),
        f_alloc_argument=partial(allocate, cases),
        f_run_evaluator=partial(run_checked, cases),
        initializer=worker_initializer(initializer),
    )


@lru_cache(maxsize=1)
def _cases(path: Path) -> list[Case]:
    return load_cases(path)


def allocate(cases: Path, device: Any, _info: Any, repeat: int) -> list[list[Any]]:
    """Tensors of the first case for the timing, ``repeat`` times."""
    inputs = _cases(cases)[0].inputs
    return [[tvm.runtime.tensor(array, device) for array in inputs] for _ in range(repeat)]


def run_checked(cases: Path, module: Any, device: Any, config: Any, arguments: Any) -> list[float]:
    """Compare with the loop on every case, then time.

    Parameters
    ----------
    cases : Path
        What ``check.save_cases`` wrote.
    module : Module
        The candidate, here or on a remote device.
    device : Device
        Where it runs.
    config : EvaluatorConfig
        How often to run.
    arguments : list
        Tensors for the timing.

    Returns
    -------
    list of float
        Seconds.

    Raises
    ------
    ScanError
        If a result differs from the loop's.
    """
    difference = first_difference(_cases(cases), module["main"], device)
    if difference is not None:
        raise ScanError(difference)
    seconds: list[float] = run_evaluator_common(module, device, config, arguments)
    return seconds
