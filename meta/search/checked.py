"""TVM's own ``tune_tir`` and ``tune_relax`` with every candidate compared with its loop first.

TVM hands a runner the path of a built candidate and nothing else, and one runner serves all tasks
of a model. So the postproc of our space marks each candidate with the sequential program that it
came from, the builder takes the mark off and remembers it by path, and the runner asks for it. In
TVM's own spaces, where our postproc is not, a candidate still has its loops, annotated with their
plans: there the builder expands it, and compares with the candidate without its plans.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import tvm_ffi
from tvm import IRModule
from tvm.ir.utils import derived_object
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms

from tvm_scan.annotations import PLAN_PREFIX
from tvm_scan.errors import ScanError
from tvm_scan.meta.measure.check import WRONG, make_cases, save_cases
from tvm_scan.meta.measure.scratch import close_pool, scratch_folder, worker_initializer
from tvm_scan.meta.measure.workers import local_builder, local_runner
from tvm_scan.meta.search.cost_model import StockModel
from tvm_scan.meta.space.expand import unmark
from tvm_scan.schedules import expand_scans
from tvm_scan.schedules.annotated import annotated_plans

_LOG = logging.getLogger("tvm_scan")
#: Of TVM's evolution, for spaces of some hundred plans.
_SEARCH = {
    "population_size": 24,
    "init_measured_ratio": 0.25,
    "init_min_unmeasured": 8,
    "max_fail_count": 20,
    "genetic_num_iters": 2,
    "genetic_max_fail_count": 4,
    "eps_greedy": 0.1,
}


class CheckedTuning:
    """Arguments for ``tune_tir`` and ``tune_relax`` such that no time counts before it is checked.

    A wrong candidate is logged as an error, fails, and is not written to the database.

    Parameters
    ----------
    seed : int
        Of the inputs.
    inputs : mapping of str to ndarray, optional
        For the check and the timing, by parameter name, where invented ones mean nothing.
    builder : Builder, optional
        ``local_builder()`` if not given.
    runner : callable, optional
        From the file of the check's cases to a runner, as for ``tune``.
    config : EvaluatorConfig, optional
        How often the default runner runs a candidate.

    Attributes
    ----------
    wrong : list of str
        What was said of each wrong candidate.

    Examples
    --------
    ::

        checked = CheckedTuning()
        tune_relax(mod, {}, target, folder, 64, space=scan_space(target), **checked.options())
    """

    def __init__(
        self,
        *,
        seed: int = 0,
        inputs: Mapping[str, np.ndarray] | None = None,
        builder: ms.builder.Builder | None = None,
        runner: Callable[[Path], Any] | None = None,
        config: ms.runner.EvaluatorConfig | None = None,
    ) -> None:
        self.wrong: list[str] = []
        self._seed, self._inputs, self._config = seed, inputs, config
        self._inner = builder or local_builder()
        if builder is None:
            weakref.finalize(self, close_pool, self._inner)
        self._make = runner or partial(local_runner, config=config)
        #: Of each artifact its sequential program; None where it has no recurrence.
        self._loops: dict[str, IRModule | None] = {}
        self._folder = Path(tempfile.mkdtemp(prefix="cases-", dir=scratch_folder()))
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._key: int | None = None
        self._runner: Any = None

    def options(self) -> dict[str, Any]:
        """Keyword arguments: what measures, what it is measured for, and what chooses.

        TVM's default search expands 512 candidates a generation and predicts them by a model that
        diverges on unrolled kernels (see ``cost_model``); so a ``strategy`` for spaces of some
        hundred plans and a ``cost_model`` are among them. A caller's own replace them:
        ``{**checked.options(), "cost_model": "random"}``.

        Returns
        -------
        dict
            ``builder``, ``runner``, ``measure_callbacks``, ``strategy`` and ``cost_model``.
        """
        default = ms.measure_callback.MeasureCallback.create("default")
        stock = [c for c in default if not isinstance(c, ms.measure_callback.AddToDatabase)]
        return {
            "builder": _Builder(self),
            "runner": _Runner(self),
            "measure_callbacks": [_Records(), *stock],
            "strategy": ms.search_strategy.EvolutionarySearch(**_SEARCH),
            "cost_model": StockModel(self._seed),
        }

    # ---- build ------------------------------------------------------------------------------

    def build(self, inputs: list[Any]) -> list[Any]:
        """Expand what is still annotated, build, and remember what each candidate came from."""
        out: list[Any] = [None] * len(inputs)
        ready = []
        for number, item in enumerate(inputs):
            try:
                with item.target:  # a rule of TVM's is not told it: the plan may be another's
                    loop, mod = _sequential_of(item.mod)
            except (
                ScanError,
                RuntimeError,
                ValueError,
            ) as error:  # it is no candidate
                out[number] = ms.builder.BuilderResult(None, f"tvm_scan: {error}")
                continue
            ready.append((number, loop, ms.builder.BuilderInput(mod, item.target, item.params)))
        built = self._inner.build([item for _, _, item in ready]) if ready else []
        for (number, loop, _), result in zip(ready, built, strict=True):
            out[number] = result
            if result.artifact_path is not None:
                self._loops[str(result.artifact_path)] = loop
        return out

    # ---- run --------------------------------------------------------------------------------

    def run(self, inputs: list[Any]) -> list[Any]:
        """Check and time; candidates of one program go to one runner together."""
        out: list[Any] = []
        known = [(item, self._loops.pop(str(item.artifact_path), None)) for item in inputs]
        for _, group in groupby(known, key=lambda pair: _hash(pair[1])):
            pairs = list(group)
            out += self._run_alike([item for item, _ in pairs], pairs[0][1])
        return [ms.runner.RunnerFuture(lambda: True, lambda r=result: r) for result in out]

    def _run_alike(self, items: list[Any], loop: IRModule | None) -> list[Any]:
        try:
            runner = self._runner_for(loop)
        except ScanError as error:
            _LOG.error("candidates are not measured, since they cannot be checked: %s", error)
            return [ms.runner.RunnerResult(None, str(error)) for _ in items]
        results = [future.result() for future in runner.run(items)]
        for result in results:
            text = str(result.error_msg or "")
            if WRONG in text:
                line = next(line for line in text.splitlines() if WRONG in line)
                self.wrong.append(line)
                _LOG.error("%s", line)
        return results

    def _runner_for(self, loop: IRModule | None) -> Any:
        """One at a time: each holds a process, and tasks come in batches."""
        key = _hash(loop)
        if self._runner is None or key != self._key:
            close_pool(self._runner)
            self._runner = None
            if loop is None:
                self._runner = ms.runner.LocalRunner(
                    120.0, self._config, initializer=worker_initializer()
                )
            else:
                cases = self._folder / str(key)
                if not cases.is_file():
                    save_cases(
                        make_cases(loop["main"], seed=self._seed, inputs=self._inputs), cases
                    )
                self._runner = self._make(cases)
            self._key = key
        return self._runner


@derived_object
class _Builder(ms.builder.PyBuilder):
    def __init__(self, tuning: CheckedTuning) -> None:
        super().__init__()
        self.tuning = tuning

    def build(self, build_inputs: list[Any]) -> list[Any]:
        return self.tuning.build(list(build_inputs))


@derived_object
class _Runner(ms.runner.PyRunner):
    def __init__(self, tuning: CheckedTuning) -> None:
        super().__init__()
        self.tuning = tuning

    def run(self, runner_inputs: list[Any]) -> list[Any]:
        return self.tuning.run(list(runner_inputs))


@derived_object
class _Records(ms.measure_callback.PyMeasureCallback):
    """TVM's ``AddToDatabase`` without the mark that it writes for what failed."""

    def apply(
        self, scheduler: Any, task: int, candidates: list[Any], _built: Any, results: list[Any]
    ) -> None:
        database, context = scheduler.database_, scheduler.tasks_[task].ctx
        workload = database.commit_workload(context.mod)
        for candidate, result in zip(candidates, results, strict=True):
            if result.run_secs:
                record = ms.database.TuningRecord(
                    candidate.sch.trace,
                    workload,
                    list(result.run_secs),
                    context.target,
                    candidate.args_info,
                )
                database.commit_tuning_record(record)


def _sequential_of(mod: IRModule) -> tuple[IRModule | None, IRModule]:
    """Return the loop that a candidate was made from, and the candidate to build."""
    sch = Schedule(mod)
    loop = unmark(sch)
    if loop is not None:
        return loop, sch.mod
    planned = annotated_plans(sch)
    if not planned:
        return None, mod
    for block, _ in planned:
        named = sch.get_sblock(block.name_hint)
        for key in block.annotations.keys():
            if str(key).startswith(PLAN_PREFIX):
                sch.unannotate(named, key)
    return sch.mod, expand_scans(mod)


def _hash(loop: IRModule | None) -> int | None:
    return None if loop is None else tvm_ffi.structural_hash(loop)
