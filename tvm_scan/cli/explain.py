"""``tvm-scan explain``: what a loop is, how it is run, or why it is refused."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from tvm_scan import Recurrence, Refusal, ScanPlan, extract
from tvm_scan._files import write_file
from tvm_scan.cli.draw_svg import tree_svg
from tvm_scan.cli.draw_text import tree_text
from tvm_scan.cli.equation import describe, number
from tvm_scan.cli.failure import REFUSED, WRONG_RESULT, CommandError
from tvm_scan.cli.load import Choice, load_func, make_target, plan_for, schedule
from tvm_scan.cli.terminal import print_json
from tvm_scan.cuda_math import build
from tvm_scan.meta.search.costs import costs_of
from tvm_scan.meta.search.operations import arithmetic_of
from tvm_scan.proof import Certificate, MissingSolverError, Verdict
from tvm_scan.proof import prove as prove_recurrence
from tvm_scan.schedules.gpu.model import predict
from tvm_scan.schedules.gpu.thread.plans import GpuPlan
from tvm_scan.schedules.machine.limits import device_of, limits_of
from tvm_scan.schedules.verification.laws import check_laws

__all__ = ["explain"]

#: What is printed of the costs, and in what it is counted.
_UNITS = {
    "bytes": "read and written in main memory",
    "flops": "operations on floats",
    "exps": "exponentials, logarithms and the like",
    "intensity": "operations to a byte",
    "work": "steps and combinations",
    "depth": "of these one after the other",
    "tasks": "at most at once",
    "barriers": "of a block of threads; on a CPU joins of all tasks",
    "smem": "bytes of shared memory for a block",
    "registers": "of 32 bits for a thread or a task, at least",
}
_TIME = ("us, were nothing else to be waited for", 1e6)
#: The same of what the model predicts for a GPU, and what it is multiplied by.
_PREDICTED = {
    "bytes": ("between main memory and the chip", 1.0),
    "specials": ("special functions", 1.0),
    "instructions": ("of warps", 1.0),
    "barriers": ("of a block, of all kernels together", 1.0),
    "shared": ("accesses of warps to shared memory", 1.0),
    "occupancy": ("% of the threads that the chip holds; registers are not counted", 1e2),
    "memory": _TIME,
    "exponentials": _TIME,
    "issue": _TIME,
    "lines": _TIME,
    "chain": _TIME,
    "seconds": ("us: the largest of these, and the launches", 1e6),
}


def explain(
    what: str,
    name: str | None,
    target_name: str,
    plan_text: str | None,
    svg: Path | None,
    source: bool,
    cost: bool,
    prove: bool,
    as_json: bool,
) -> None:
    """Print; see ``tvm-scan explain --help``."""
    target = make_target(target_name)
    func = load_func(what, name)
    found = extract(func)
    if isinstance(found, Refusal):
        if as_json:
            print_json({"refused": found.kind.value, "detail": found.detail, "fix": found.fix})
        raise CommandError(f"refused\n{found.message()}", REFUSED)
    plan = plan_for(plan_text, target, found)
    if svg is not None:
        if not (svg.parent.is_dir() or str(svg.parent) == ""):
            raise CommandError(f"expected a folder at {svg.parent}, found none; create it")
        write_file(svg, tree_svg(found, plan))
    report = {
        **describe(found),
        "plan": str(plan),
        "shared_memory_bytes": plan.smem_bytes(found),
        "tree": tree_text(found, plan),
        "laws": [asdict(law) for law in check_laws(found)],
    }
    certificate = _proof(found) if prove else None
    if certificate is not None:
        report["proof"] = certificate.as_data()
    if cost:
        report["cost"] = {
            **asdict(costs_of(plan, target, found)),
            **asdict(arithmetic_of(plan, target, found)),
        }
        if isinstance(plan, GpuPlan):
            report["predicted"] = asdict(predict(plan, found, limits_of(target)))
    if source:
        every = Choice(target) if plan_text is None else plan
        report["source"] = _source(func, target, every)
    if as_json:
        print_json(report)
    else:
        _show(report, found, plan)
        if certificate is not None:
            print(certificate)
        if svg is not None:
            print(f"drawn: {svg}")
    if certificate is not None and certificate.verdict is Verdict.REFUTED:
        raise CommandError(
            f"expected the scan of {certificate.function} to be its loop, found inputs for which "
            "it is not; run the loop as it is, and report them",
            WRONG_RESULT,
        )


def _proof(found: Recurrence) -> Certificate:
    try:
        return prove_recurrence(found)
    except MissingSolverError as error:
        raise CommandError(f"explain --{error}") from error


def _source(func: Any, target: Any, plan: ScanPlan | Choice) -> str:
    compiled = build(schedule(func, target, plan), target)
    if device_of(target) == "cuda":
        return str(compiled.mod.imports[0].inspect_source())
    return str(compiled.mod.inspect_source("ll"))


def _show(report: dict[str, Any], found: Recurrence, plan: ScanPlan) -> None:
    lanes = ", ".join(f"{a.var.name} < {number(a.extent)}" for a in found.lanes) or "one"
    print(f"function  {report['function']}")
    print(f"time      {found.time.var.name} < {number(found.time.extent)}")
    print(f"lanes     {lanes}")
    print("step")
    for line in report["equations"]:
        print(f"    {line}")
    for carry in report["carries"]:
        cells = "x".join(map(str, carry["cells_per_lane"]))
        print(
            f"carry     {carry['name']}: {carry['dtype']}{f', {cells} per lane' if cells else ''}"
        )
        stage = f", stage {carry['stage']}" if carry["stage"] else ""
        print(f"family    {carry['family']}{stage}")
        for key, text in carry["formulas"].items():
            print(f"    {key:<9} {text}")
    print("laws, on random steps")
    for law in report["laws"]:
        error = law["largest_error"]
        shown = "exact" if error == 0 else f"within {error:.1e}"
        print(f"    {shown:<16} {law['law']} ({law['samples']} triples)")
    print(f"emits     {', '.join(report['emits']) or 'the last state only'}")
    print(f"plan      {plan}")
    if report["shared_memory_bytes"]:
        print(f"shared    {report['shared_memory_bytes']} bytes per block")
    print("tree")
    for line in report["tree"].splitlines():
        print(f"    {line}".rstrip())
    if "cost" in report:
        print("cost")
        for name, unit in _UNITS.items():
            value = report["cost"][name]
            shown = f"{value:.3g}" if name == "intensity" else f"{value:,.0f}"
            print(f"    {name:<10}{shown:>16}  {unit}")
    if "predicted" in report:
        print("predicted, on paper")
        for key, (unit, scale) in _PREDICTED.items():
            value = report["predicted"][key] * scale
            print(f"    {key:<13}{f'{value:,.1f}' if scale > 1 else f'{value:,.0f}':>16}  {unit}")
    if "source" in report:
        print("source")
        print(report["source"])
