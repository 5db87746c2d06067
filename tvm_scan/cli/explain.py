"""``tvm-scan explain``: what a loop is, how it is run, or why it is refused."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tvm_scan.cli.support.costs import cost_lines
from tvm_scan.cli.support.failure import REFUSED, WRONG_RESULT, CommandError
from tvm_scan.cli.support.options import Json, Name, Plan, Svg, Target
from tvm_scan.cli.support.paths import check_folder, check_program
from tvm_scan.cli.support.terminal import print_json, print_wrapped

if TYPE_CHECKING:
    from tvm_scan import Recurrence, ScanPlan
    from tvm_scan.cli.support.load import Choice
    from tvm_scan.delta_rule import TimeLoop
    from tvm_scan.proof import Certificate
    from tvm_scan.schedules.choose.default import Decision


#: Other candidates that are printed beside the default.
_OTHERS = 3


def command(
    what: Annotated[str, typer.Argument(help="Python file, or library:NAME (library:cumsum)")],
    func: Name = None,
    target: Target = "cpu",
    plan: Plan = None,
    svg: Svg = None,
    source: Annotated[bool, typer.Option("--source", help="print the kernel's source")] = False,
    cost: Annotated[
        bool, typer.Option("--cost", help="print bytes, operations, barriers, shared memory")
    ] = False,
    prove: Annotated[
        bool, typer.Option("--prove", help="print a proof for all inputs, by the solver z3")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show the equation found, its family, the plan and the tree; or why it is refused.

    Of a delta rule the gate, vectors and amounts of a step are shown.

    With --prove, exit code 1 if the solver finds inputs for which the scan is not the loop.

    Example: tvm-scan explain library:linear_recurrence --target cuda --svg tree.svg
    """
    check_program(what)
    check_folder(svg)
    from tvm_scan import Recurrence, Refusal, ScanPlan, plan_of
    from tvm_scan._files import write_file
    from tvm_scan.cli.draw.delta_rule import describe_rule
    from tvm_scan.cli.draw.equation import describe
    from tvm_scan.cli.draw.tree_svg import tree_svg
    from tvm_scan.cli.draw.tree_text import tree_text
    from tvm_scan.cli.support import load
    from tvm_scan.meta.search.operations import arithmetic_of
    from tvm_scan.proof import Verdict
    from tvm_scan.schedules.analysis import first_loop
    from tvm_scan.schedules.choose.arguments import check_fits
    from tvm_scan.schedules.machine.machine import Machine
    from tvm_scan.schedules.verification.laws import check_laws

    on = load.make_target(target)
    loop = load.load_func(what, func)
    recurrence = first_loop(loop)
    if isinstance(recurrence, Refusal):
        if as_json:
            about = {"detail": recurrence.detail, "fix": recurrence.fix}
            print_json({"refused": recurrence.kind.value, **about})
        raise CommandError(f"refused\n{recurrence.message()}", REFUSED)
    chosen = plan_of(recurrence, on) if plan is None else ScanPlan.parse(plan)
    check_fits(chosen, on, recurrence)
    if svg is not None:
        write_file(svg, tree_svg(recurrence, chosen))
    scan = recurrence if isinstance(recurrence, Recurrence) else None
    if prove and scan is None:
        raise CommandError("expected a scan for --prove, found a delta rule; leave --prove out")
    report = {
        **(
            describe(recurrence)
            if isinstance(recurrence, Recurrence)
            else describe_rule(recurrence)
        ),
        "plan": str(chosen),
        "shared_memory_bytes": chosen.smem_bytes(recurrence),
        "tree": tree_text(recurrence, chosen),
        "laws": [] if scan is None else [asdict(law) for law in check_laws(scan)],
        "decision": (decision := _decision(on, recurrence, chosen)),
        # What no record knows is chosen by prediction, and a plan that is given is neither.
        "shipped": plan is None and decision is None,
    }
    certificate = None if scan is None or not prove else _proof(scan)
    if certificate is not None:
        report["proof"] = certificate.as_data()
    if cost:
        report["cost"] = {
            **chosen.cost(recurrence, Machine.of(on)).as_data(),
            **asdict(arithmetic_of(chosen, on, recurrence)),
        }
    if source:
        report["source"] = _source(loop, on, load.Choice(on) if plan is None else chosen)
    if as_json:
        print_json(report)
    else:
        _show(report, chosen)
        if certificate is not None:
            for line in str(certificate).splitlines():
                print_wrapped(line, 25)
        if svg is not None:
            print(f"drawn: {svg}")
    if certificate is not None and certificate.verdict is Verdict.REFUTED:
        raise CommandError(
            f"expected the scan of {certificate.function} to be its loop, found inputs for which "
            "it is not; run the loop as it is, and report them",
            WRONG_RESULT,
        )


def _proof(recurrence: Recurrence) -> Certificate:
    from tvm_scan.proof import MissingSolverError, prove

    try:
        return prove(recurrence)
    except MissingSolverError as error:
        raise CommandError(f"explain --{error}") from error


def _source(func: Any, target: Any, plan: ScanPlan | Choice) -> str:
    from tvm_scan import parallelize
    from tvm_scan.cuda_math import build
    from tvm_scan.schedules.launch import emit
    from tvm_scan.schedules.machine.device import device_of

    scheduled, device = parallelize(func, target, plan), device_of(target)
    if device.generator:
        return "\n".join(kernel.source for kernel in emit(scheduled, target).kernels.values())
    try:
        compiled = build(scheduled, target)
    except RuntimeError as error:
        # Such as the libraries of ROCm, which TVM links to every kernel.
        said = (str(error).strip() or "an error").splitlines()[-1]
        raise CommandError(
            f"expected TVM to compile for {device.name}, got: {said}; install what it misses, or "
            "look at the kernel without --source"
        ) from error
    if device.is_gpu:
        return str(compiled.mod.imports[0].inspect_source())
    return str(compiled.mod.inspect_source("ll"))


def _show(report: dict[str, Any], plan: ScanPlan) -> None:
    from tvm_scan.cli.draw.delta_rule import rule_lines

    if "terms" in report:
        for line in rule_lines(report):
            print_wrapped(line, 10)
    else:
        _show_scan(report)
    print_wrapped(f"plan      {plan}", 10)
    if report["shared_memory_bytes"]:
        print(f"shared    {report['shared_memory_bytes']} bytes per block")
    print("tree")
    for line in report["tree"].splitlines():
        print_wrapped(f"    {line}".rstrip(), 12)
    if report["decision"] is not None:
        _show_decision(report["decision"])
    elif report["shipped"]:
        print("shipped   the plan of a near shape, measured on a machine of this kind")
    if "cost" in report:
        print("cost, on paper")
        for line in cost_lines(report["cost"]):
            print_wrapped(f"    {line}", 24)
    if "source" in report:
        print("source")
        print(report["source"])


def _show_scan(report: dict[str, Any]) -> None:
    lanes = ", ".join(f"{a['axis']} < {a['extent']}" for a in report["lanes"]) or "one"
    print(f"function  {report['function']}")
    print(f"time      {report['time']['axis']} < {report['time']['extent']}")
    print(f"lanes     {lanes}")
    print("step")
    for line in report["equations"]:
        print_wrapped(f"    {line}", 8)
    for carry in report["carries"]:
        cells = "x".join(map(str, carry["cells_per_lane"]))
        print(
            f"carry     {carry['name']}: {carry['dtype']}{f', {cells} per lane' if cells else ''}"
        )
        level = f", level {carry['level']}" if carry["level"] else ""
        print(f"family    {carry['family']}{level}")
        for key, text in carry["formulas"].items():
            print_wrapped(f"    {key:<9} {text}", 14)
    print("laws, on random steps")
    for law in report["laws"]:
        error = law["largest_error"]
        shown = "exact" if error == 0 else f"within {error:.1e}"
        print_wrapped(f"    {shown:<16} {law['law']} ({law['samples']} triples)", 21)
    print(f"emits     {', '.join(report['emits']) or 'the last state only'}")


def _decision(target: Any, recurrence: TimeLoop, plan: ScanPlan) -> dict[str, Any] | None:
    """The comparison that made a plan the default; None where the default is another one."""
    from tvm_scan.schedules.choose.default import decide
    from tvm_scan.schedules.machine.machine import Machine

    decision = decide(target, recurrence)
    if decision.chosen.plan != plan:
        return None
    shown = [decision.chosen, *decision.others[:_OTHERS]]
    loop = [
        candidate
        for candidate in decision.others
        if candidate.plan.keeps_loop and candidate not in shown
    ]
    return {
        "candidates": 1 + len(decision.others),
        "predicted_for": Machine.of(target).predicted_for,
        "why_sequential": _why_sequential(decision) if plan.keeps_loop else None,
        "nearest": [
            {
                "plan": str(candidate.plan),
                "seconds": candidate.seconds,
                "rules": [rule.name for rule in candidate.rules],
            }
            for candidate in [*shown, *loop]
        ],
    }


def _why_sequential(decision: Decision) -> str:
    """The reason, by the predictions, that the loop stays as it was written."""
    from tvm_scan.meta.measure.duration import duration

    loop = duration(decision.chosen.seconds)
    count = len(decision.others)
    if not count:
        return f"the loop as it was written, predicted to take {loop}: no other plan fits"
    other = min(decision.others, key=lambda candidate: candidate.seconds)
    if other.seconds >= decision.chosen.seconds:
        said = "none of them is predicted to be faster"
    else:
        said = "it is left only for what is clearly faster"
    return (
        f"the loop as it was written, predicted to take {loop}; the fastest of {count} others is "
        f"predicted to take {duration(other.seconds)}: {said}"
    )


def _show_decision(decision: dict[str, Any]) -> None:
    if decision["why_sequential"] is not None:
        print_wrapped(f"default   {decision['why_sequential']}", 10)
    else:
        reason = f"the least prediction of {decision['candidates']} plans"
        reason += f", for {decision['predicted_for']}" if decision["predicted_for"] else ""
        print_wrapped(f"default   {reason}, with the nearest others", 10)
    for candidate in decision["nearest"]:
        rules = f"  ({'; '.join(candidate['rules'])})" if candidate["rules"] else ""
        print_wrapped(
            f"    {candidate['seconds'] * 1e6:>12,.1f} us  {candidate['plan']}{rules}", 21
        )
