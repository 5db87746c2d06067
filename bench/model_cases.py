"""One model of `bench.relax_models`: prefills and a decode, compiled, compared and timed."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.target import Target

from bench.model_pages import Row
from bench.model_products import NAME, products_by_blas
from bench.model_sizes import MODELS, REAL, VOCABULARY
from bench.model_states import Decode, Prefill
from bench.timing import interleaved, undisturbed
from tvm_scan.arguments import host_target
from tvm_scan.relax import FindScans, FuseScans, LegalizeScans, from_exported, get_pipeline

__all__ = ["Compiled", "make", "measure_model"]

#: From here on a call is timed once.
_SLOW_MS = 1500.0
#: Calls that are taken apart.
_WATCHED = 5
#: Relative to the largest logit; what TVM's own result must agree to as well.
TOLERANCE = 2e-4


def make(name: str, real: bool = False) -> Any:
    """A model with random weights, in float32; its heads small, or of real sizes."""
    import torch
    import transformers

    prefix, options = MODELS[name]
    options = {**options, **(REAL[name] if real else {})}
    torch.manual_seed(0)
    config = getattr(transformers, f"{prefix}Config")(**options)
    return getattr(transformers, f"{prefix}ForCausalLM")(config).eval()


class Compiled:
    """A module of Relax, compiled for this machine, with the arguments of its case.

    Attributes
    ----------
    seconds : float
        That compilation took.
    """

    def __init__(
        self,
        mod: Any,
        target: Target,
        pipeline: Any,
        args: Sequence[Any],
        build: Callable[..., Any] = tvm.compile,
    ) -> None:
        start = time.perf_counter()
        built = build(mod, target=target, relax_pipeline=pipeline)
        self.seconds = time.perf_counter() - start
        self._built = built
        self._machine = relax.VirtualMachine(built, tvm.cpu())
        self._args = [tvm.runtime.tensor(a.numpy()) for a in args]

    def __call__(self) -> list[Any]:
        """The results, as tensors of TVM."""
        return list(self._machine["main"](*self._args))

    def spent(self, *groups: set[str]) -> list[float]:
        """Milliseconds of a call within the functions of each group; medians of watched calls."""
        started: list[float] = []
        total = [0.0] * len(groups)

        def instrument(_func: Any, name: str, before: bool, _value: Any, *_args: Any) -> int:
            if before:
                started.append(time.perf_counter())
            else:
                seconds = time.perf_counter() - started.pop()
                for i, group in enumerate(groups):
                    total[i] += seconds if str(name) in group else 0.0
            return 0

        # A machine of its own: one that was instrumented pays for every call from then on.
        watched = relax.VirtualMachine(self._built, tvm.cpu())
        watched["main"](*self._args)
        watched.set_instrument(instrument)
        calls = []
        with undisturbed():
            for _ in range(_WATCHED):
                total[:] = [0.0] * len(groups)
                watched["main"](*self._args)
                calls.append([seconds * 1e3 for seconds in total])
        return np.median(calls, axis=0).tolist()


class _Case:
    """One row: what is exported once, and compiled by us and by TVM alone."""

    def __init__(
        self,
        row: Row,
        module: Any,
        args: Sequence[Any],
        want: np.ndarray,
        *,
        blas: bool,
        timed: bool,
        build: Callable[..., Any],
    ) -> None:
        import torch

        self.row, self.args, self.want, self.blas, self.timed = row, args, want, blas, timed
        self.build = build
        self.target = host_target()
        start = time.perf_counter()
        with warnings.catch_warnings():  # torch.export warns about itself
            warnings.simplefilter("ignore")
            self.program = torch.export.export(module, tuple(args))
        self.row = replace(row, export_s=time.perf_counter() - start)

    def _compile(self, load: Callable[[Any], Any], pipeline: Any) -> tuple[float, Any, Compiled]:
        start = time.perf_counter()
        mod = load(self.program)
        seconds = time.perf_counter() - start
        mod = products_by_blas(mod) if self.blas else mod
        compiled = Compiled(mod, self.target, pipeline, self.args, self.build)
        return seconds + compiled.seconds, mod, compiled

    def _error(self, got: Any) -> float:
        return float(np.abs(got.numpy() - self.want).max() / np.abs(self.want).max())

    def ours(self) -> list[Any]:
        """Compile with tvm_scan, fill in the row, and give the results; none if that fails."""
        try:
            return self._ours()
        except Exception as failed:
            self.row = replace(self.row, scans=_said(failed))
            return []

    def _ours(self) -> list[Any]:
        seconds, mod, self.call = self._compile(from_exported, get_pipeline(self.target))
        results = self.call()
        found, names = _scans(mod, self.target)
        self.row = replace(self.row, scans=found, error=self._error(results[0]), compile_s=seconds)
        if not self.timed:
            return results
        scans, products = self.call.spent(names, {NAME})
        self.row = replace(
            self.row,
            run_ms=_milliseconds({"ours": self.call})["ours"],
            scans_ms=scans,
            products_ms=products if self.blas else None,
        )
        return results

    def theirs(self) -> None:
        """Compile with TVM alone, and fill in the rest of the row."""
        frontend = import_module("tvm.relax.frontend.torch")
        pipeline = import_module("tvm.relax.backend.cpu_generic.pipeline")
        try:
            default = pipeline.get_default_pipeline(self.target)
            seconds, _, call = self._compile(frontend.from_exported_program, default)
            error = self._error(call()[0])
        except Exception as failed:
            self.row = replace(self.row, tvm_says=_said(failed))
            return
        says = "same result" if error <= TOLERANCE else f"another result, error {error:.1e}"
        ours = {} if self.row.error is None else {"ours": self.call}
        times = _milliseconds({**ours, "theirs": call})
        self.row = replace(
            self.row,
            run_ms=times.get("ours"),
            tvm_compile_s=seconds,
            tvm_run_ms=times["theirs"],
            tvm_says=says,
        )


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"


def _scans(mod: Any, target: Target) -> tuple[str, set[str]]:
    """Families that are found, and the functions that the pipeline makes of them."""
    found, names = [], set()
    for report in FindScans(FuseScans(target)(LegalizeScans()(mod))):
        found += [a.name for r in report.recurrences for a in r.algebras]
        found += ["delta rule"] * len(report.deltas)
        found += [f"refused ({r.kind.value})" for r in report.refused]
        names |= {report.name} if report.recurrences or report.deltas else set()
    return ", ".join(sorted(set(found))) or "none", names


def _milliseconds(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Medians in turns; of calls that take seconds, one each."""
    once = {}
    for name, call in calls.items():
        call()
        with undisturbed():
            start = time.perf_counter()
            call()
            once[name] = (time.perf_counter() - start) * 1e3
    if max(once.values()) > _SLOW_MS:
        return once
    return {name: times.median * 1e3 for name, times in interleaved(calls).items()}


def measure_model(
    tell: Callable[[list[Row]], None],
    name: str,
    lengths: Sequence[int],
    plain_up_to: int = 0,
    real: bool = False,
    decode: bool = True,
    timed: bool = True,
    build: Callable[..., Any] = tvm.compile,
) -> None:
    """Measure one model; ``tell`` is called with all rows after each step.

    Parameters
    ----------
    tell : callable
        Takes the rows so far.
    name : str
        One of ``MODELS``.
    lengths : sequence of int
        Of prefills; behind the first one follows the decode of one token.
    plain_up_to : int
        The longest prefill to compile with TVM alone.
    real : bool
        Real sizes of heads and states, and products by NumPy's BLAS.
    decode : bool
        Whether to decode at all.
    timed : bool
        Whether to time calls, or to compare results alone.
    build : callable
        As ``tvm.compile``.
    """
    import torch

    model = make(name, real)
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, VOCABULARY, (1, max(lengths) + 1), generator=generator)
    cases: list[_Case] = []

    def told() -> None:
        tell([case.row for case in cases])

    for at, length in enumerate(lengths):
        prefill = Prefill(model, keep=True)
        with torch.no_grad():
            want, *eager = prefill(ids[:, :length])
        how: dict[str, Any] = {"blas": real, "timed": timed, "build": build}
        row = Row(name, "prefill", length)
        case = _Case(row, prefill, [ids[:, :length]], want.numpy(), **how)
        states = [torch.from_numpy(r.numpy().copy()) for r in case.ours()[1:]]
        cases.append(case)
        told()
        if at == 0 and decode and states:
            token = ids[:, length : length + 1]
            with torch.no_grad():
                want = Decode(model, length)(token, *eager)[0].numpy()
                long = Prefill(model)(ids[:, : length + 1])[0].numpy()[:, -1]
            module = Decode(model, length)
            row = Row(name, "decode", length + 1)
            case = _Case(row, module, [token, *states], want, **how)
            if results := case.ours():
                got = results[0].numpy()[:, -1]
                to_long = float(np.abs(got - long).max() / np.abs(long).max())
                case.row = replace(case.row, error_long=to_long)
            cases.append(case)
            told()
    for case in cases:
        if case.row.length <= plain_up_to + (case.row.kind == "decode"):
            case.row = replace(case.row, tvm_says="not within the time")
    told()
    for case in sorted(cases, key=lambda c: (c.row.kind, c.row.length)):
        if case.row.tvm_says != "not measured":
            case.theirs()
            told()
