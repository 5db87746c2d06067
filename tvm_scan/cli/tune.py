"""``tvm-scan tune``: measure plans, keep the records, say what was gained."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tvm_scan.cli.support.asked import asked_of
from tvm_scan.cli.support.failure import INTERRUPTED, MACHINES_GONE, WRONG_RESULT, CommandError
from tvm_scan.cli.support.options import (
    DATABASE,
    Database,
    Dtype,
    Json,
    Name,
    Shape,
    Target,
    What,
)
from tvm_scan.cli.support.paths import check_program
from tvm_scan.cli.support.terminal import print_json, visible

if TYPE_CHECKING:
    from tvm_scan.meta.search.result import FunctionResult, TuningResult


#: What a report has of every trial beside its plan.
_FACTS = ("seconds", "error", "wrong", "recorded")
#: Trials for each function where only minutes are given.
_MANY = 100_000


def command(
    what: What,
    func: Name = None,
    shape: Shape = None,
    dtype: Dtype = "float32",
    target: Target = "cpu",
    database: Database = DATABASE,
    budget: Annotated[
        str,
        typer.Option("--budget", help="trials for each function (64), or minutes in all (10m)"),
    ] = "64",
    seed: Annotated[
        int, typer.Option("--seed", min=0, max=2**31 - 2, help="of inputs and candidates")
    ] = 0,
    tracker: Annotated[
        str | None, typer.Option("--tracker", help="host:port of TVM's RPC tracker")
    ] = None,
    key: Annotated[str | None, typer.Option("--key", help="of the machines there")] = None,
    as_json: Json = False,
) -> None:
    """Measure plans for every recurrence of a program, and keep the records.

    Ctrl-C ends it after the measurement in progress, with all records kept.

    Example: tvm-scan tune library:cumsum --shape 4,4096 --budget 3
    """
    trials, minutes = parse_budget(budget)
    check_program(what)
    from tvm_scan.cli.support.load import make_target, missing_device
    from tvm_scan.cli.support.programs import load_program
    from tvm_scan.meta.search.tune import tune

    on, asked = make_target(target), asked_of(what, func, shape, dtype, target)
    runner = None if tracker is None and key is None else _remote(tracker, key)
    if runner is None and (missing := missing_device(on)):
        raise CommandError(f"{missing}; tune on another one with --tracker host:port --key NAME")
    program = load_program(what, func, shape, dtype, on)
    options: dict[str, Any] = {} if runner is None else {"runner": runner}
    result = tune(
        program,
        on,
        database,
        trials=trials,
        budget=minutes,
        seed=seed,
        progress=not as_json,
        facts=None if asked is None else {"asked": asked.words},
        **options,
    )
    if as_json:
        print_json(_report(result))
    else:
        print("\n".join(map(visible, _lines(result))))
    if result.wrong:
        raise CommandError(
            f"expected every candidate to agree with its loop, found {len(result.wrong)} that do "
            "not; they are not recorded; please report the function and the plan",
            WRONG_RESULT,
        )
    if result.stopped is not None:
        raise CommandError("stopped before its time; every record is kept", MACHINES_GONE)
    if result.interrupted:
        raise CommandError("interrupted; every record is kept", INTERRUPTED)


def parse_budget(text: str) -> tuple[int, float | None]:
    """Trials, and minutes where the text says so.

    Parameters
    ----------
    text : str
        ``64``: trials for each function; ``10m``, ``2.5m``: minutes for all of them.

    Returns
    -------
    trials : int
    minutes : float or None

    Raises
    ------
    CommandError
        For any other text.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)m", text)
    if match and float(match[1]) > 0:
        return _MANY, float(match[1])
    if text.isdigit() and int(text) > 0:
        return int(text), None
    raise CommandError(
        f"expected --budget as trials (64) or minutes (10m), got {text}; give one of them"
    )


def _remote(tracker: str | None, key: str | None) -> Any:
    if tracker is None or key is None:
        raise CommandError(
            "expected --tracker host:port and --key NAME together, got one of them; give both"
        )
    from tvm_scan.meta.measure.rpc import parse_tracker, rpc_runner

    return rpc_runner(*parse_tracker(tracker), key)


def _report(result: TuningResult) -> dict[str, Any]:
    return {
        "database": str(result.database),
        "seconds": result.seconds,
        "interrupted": result.interrupted,
        "functions": [
            {
                "function": f.name,
                "space": f.space,
                "best": None if f.best is None else str(f.best),
                "best_seconds": None if f.best is None else f.best.seconds,
                "default_seconds": None if f.default is None else f.default.seconds,
                "sequential_seconds": None if f.sequential is None else f.sequential.seconds,
                "trials": [
                    {"plan": str(t), **{name: getattr(t, name) for name in _FACTS}}
                    for t in f.trials
                ],
            }
            for f in result.functions
        ],
    }


def _lines(result: TuningResult) -> list[str]:
    lines = []
    for of_function in result.functions:
        lines.append(f"function    {of_function.name}")
        recorded = len(of_function.trials) - of_function.measured
        beside = f", beside {recorded} on record" if recorded else ""
        lines.append(
            f"trials      {of_function.measured} of a space of {of_function.space}{beside}"
        )
        lines.append(f"sequential  {_time(of_function, of_function.sequential)}")
        lines.append(f"default     {_time(of_function, of_function.default)}")
        lines.append(f"best        {_time(of_function, of_function.best)}")
    lines.append(f"records     {result.database}")
    return lines


def _time(of_function: FunctionResult, trial: Any) -> str:
    if trial is None or trial.seconds is None:
        return "not measured"
    from tvm_scan.meta.measure.duration import duration

    loop = of_function.sequential
    gain = ""
    if loop is not None and loop.seconds is not None and loop is not trial:
        gain = f"  {loop.seconds / trial.seconds:.2f}x the loop"
    return f"{duration(trial.seconds)}  {trial}{gain}"
