"""``tune``: find the plan of every recurrence of a program, and record what was measured.

Candidates come from ``candidates``, are built in worker processes, compared with the loop and timed
in others, recorded, and learnt from; ``loop`` goes round, and the fastest meet in ``finals``.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any, TypeAlias

import numpy as np
from tvm import IRModule, tirx
from tvm.s_tir import meta_schedule as ms
from tvm.target import Target

from tvm_scan.arguments import as_target, host_target
from tvm_scan.errors import RefusalError, ScanError
from tvm_scan.extraction import extract
from tvm_scan.meta.measure.check import make_cases, save_cases
from tvm_scan.meta.measure.progress import Progress, Stop, shielded, stop_on_interrupt
from tvm_scan.meta.measure.scratch import close_pool, scratch_folder
from tvm_scan.meta.measure.workers import local_builder, local_runner
from tvm_scan.meta.search.loop import FunctionSearch
from tvm_scan.meta.search.result import TuningResult
from tvm_scan.meta.store.files import locked
from tvm_scan.recurrence import Refusal
from tvm_scan.schedules.analysis import analyse

Program: TypeAlias = tirx.PrimFunc | IRModule | Mapping[str, tirx.PrimFunc]
RunnerFactory = Callable[[Path], ms.runner.Runner]
#: Seconds that a budget leaves for the finals of a function, or a fifth of its share.
_FINALS = 20.0


def tune(
    program: Program,
    target: Target | str | None = None,
    database: str | Path = "tvm_scan_records",
    *,
    trials: int = 64,
    budget: float | None = None,
    seed: int = 0,
    strategy: str = "auto",
    builder: ms.builder.Builder | None = None,
    runner: RunnerFactory | None = None,
    config: ms.runner.EvaluatorConfig | None = None,
    initializer: Callable[[], None] | None = None,
    inputs: Mapping[str, np.ndarray] | None = None,
    confirm: bool = True,
    progress: bool = True,
    facts: Mapping[str, Any] | None = None,
) -> TuningResult:
    """Measure plans for every recurrence of a program, and keep the records.

    Parameters
    ----------
    program : PrimFunc, IRModule or mapping of str to PrimFunc
        Functions with constant extents; those without a recurrence are passed over.
    target : tvm.target.Target or str, optional
        This machine's CPU if not given.
    database : path
        Folder of the records; made if need be. What is in it stays.
    trials : int
        Most candidates to measure for each function, the default and the sequential plan among
        them. A space that is no larger is measured whole. What the database has of this machine is
        not measured again: it stands beside the trials.
    budget : float, optional
        Most minutes for the whole program.
    seed : int
        Of inputs, sampling and mutation.
    strategy : {"auto", "model", "random"}
        ``auto`` measures a small space whole, and in a larger one what a cost model likes best of
        all that is left; ``random`` is what the search is compared with.
    builder : Builder, optional
        ``local_builder()`` if not given.
    runner : callable, optional
        From the file of the check's cases to a runner: ``rpc_runner(...)`` for other machines. It
        is this one if not given.
    config : EvaluatorConfig, optional
        How often a candidate runs.
    initializer : callable, optional
        Runs first in every worker process of the default builder and runner.
    inputs : mapping of str to ndarray, optional
        For the check and the timing, by parameter name, where invented ones mean nothing.
    confirm : bool
        Whether the fastest candidates and the default are measured again, in turns, at the end.
    progress : bool
        Whether to draw a bar on the terminal, or to print a line now and then where there is none.
    facts : mapping of str to object, optional
        What the manifest is to keep with every record beside its provenance; JSON takes it.

    Returns
    -------
    TuningResult

    Raises
    ------
    RefusalError
        If no function of the program has a recurrence; the message says why not.
    ScanError
        If a function has symbolic extents, xgboost is missing, or the database cannot be written.
    """
    if strategy not in ("auto", "model", "random") or trials < 1:
        raise ScanError(
            f"tune: expected strategy auto, model or random and at least one trial, got "
            f"{strategy!r} and {trials}; choose one of them"
        )
    target = as_target(target, "tune") or host_target()
    functions = _functions(program)
    with locked(Path(database)):
        pass  # a folder that cannot be written to is told before anything is measured
    begin = monotonic()
    result = TuningResult(Path(database))
    stop = Stop()
    end = stop.deadline
    with ExitStack() as ends:
        ends.enter_context(stop_on_interrupt(stop))
        bar = ends.enter_context(Progress(progress))
        if builder is None:
            builder = shielded(lambda: local_builder(initializer=initializer))
            ends.callback(close_pool, builder)
        for number, (name, func) in enumerate(functions):
            if budget is not None:
                share = (begin + budget * 60 - monotonic()) / (len(functions) - number)
                end = monotonic() + share
                stop.deadline = end - (min(share / 5, _FINALS) if confirm else 0.0)
            with tempfile.TemporaryDirectory(dir=scratch_folder()) as folder:
                cases = Path(folder) / "cases"
                save_cases(make_cases(func, seed=seed, inputs=inputs), cases)
                builder_in_pool = shielded(
                    partial(runner, cases)
                    if runner is not None
                    else partial(local_runner, cases, config=config, initializer=initializer)
                )
                search = FunctionSearch(
                    name, func, target, result.database, seed, stop, bar, facts or {}
                )
                result.functions.append(search.result)
                if inputs is None:  # with others, a plan may take another time
                    search.start_from_records()
                try:
                    search.run(builder, builder_in_pool, trials, strategy)
                    stop.deadline = end
                    if confirm:
                        search.confirm()
                finally:
                    search.end()
                    close_pool(builder_in_pool)
            if stop.interrupted or stop.reason:
                break
    result.interrupted, result.stopped = stop.interrupted, stop.reason
    result.seconds = monotonic() - begin
    return result


def _functions(program: Program) -> list[tuple[str, tirx.PrimFunc]]:
    """The functions with a recurrence, or the refusal of the first one without."""
    if isinstance(program, tirx.PrimFunc):
        name = str((program.attrs or {}).get("global_symbol", "main"))
        named: Iterable[tuple[str, Any]] = [(name, program)]
    elif isinstance(program, IRModule):
        named = [(str(g.name_hint), f) for g, f in program.functions_items()]
    elif isinstance(program, Mapping):
        named = program.items()
    else:
        raise ScanError(
            "tune: expected a PrimFunc, an IRModule or a mapping of names to PrimFuncs, got "
            f"{type(program).__name__}; pass the sequential loop"
        )
    every = [(name, f) for name, f in named if isinstance(f, tirx.PrimFunc)]
    with_scans = [(name, f) for name, f in every if analyse(f).accepted]
    if not with_scans:
        for _, func in every:
            refusal = extract(func)
            if isinstance(refusal, Refusal):
                raise RefusalError(refusal.message(), refusal)
        raise ScanError("tune: expected a program with a recurrence, found no function; add one")
    return with_scans
