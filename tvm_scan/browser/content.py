"""Content of a page: kernels and loops by name, the arrays around them, the order of both."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from tvm import tirx
from tvm.target import Target

from tvm_scan import tir
from tvm_scan.browser.loops import Loop, loop_of, named_extents
from tvm_scan.browser.values import OTHERS, Span, spans_of
from tvm_scan.delta_rule import DeltaRule
from tvm_scan.recurrence import Recurrence
from tvm_scan.schedules.analysis import Analysis, analyse
from tvm_scan.schedules.choose.arguments import Chooser
from tvm_scan.schedules.function import parallelize
from tvm_scan.schedules.launch.numbers import Number, number_of
from tvm_scan.schedules.launch.program import Array, Program, Step, emit
from tvm_scan.schedules.plan import ScanPlan
from tvm_scan.schedules.verification.bounds import promise
from tvm_scan.schedules.verification.inputs import STEPS


@dataclass(frozen=True)
class Operand:
    """An array that is there before the first step: an input, an output or a constant.

    Attributes
    ----------
    array : Array
        Its name, dtype and shape.
    read, written : bool
        Whether what it begins with is read, and whether it is an output.
    span : Span or None
        Of an input: between which examples are drawn.
    bound : float
        Of an output: its largest error over its largest value, at `Content.bound_steps` steps.
    constant : numpy.ndarray or None
        What it begins with, if that is always the same.
    """

    array: Array
    read: bool
    written: bool
    span: Span | None = None
    bound: float = 0.0
    constant: np.ndarray | None = None


@dataclass(frozen=True)
class Content:
    """Content of a page.

    Attributes
    ----------
    name : str
        Of the function or the model.
    sizes : dict of str to int
        An example of each symbolic extent.
    time : Number
        Steps of the (first) recurrence.
    length : str or None
        The size that it follows, if one is symbolic.
    bound_steps : int
        Steps at which the bounds of outputs are said; they grow with the root of their number.
    arrays : list of Operand
        In the order of the parameters.
    functions : dict of str to Program
        Kernels, by function.
    loops : dict of str to Loop
        Sequential functions.
    scan, loop : list of Step
        Calls, in order, of functions with kernels and of loops.
    families : list of str
        Of the recurrences.
    """

    name: str
    sizes: dict[str, int]
    time: Number
    length: str | None
    bound_steps: int
    arrays: list[Operand]
    functions: dict[str, Program]
    loops: dict[str, Loop]
    scan: list[Step]
    loop: list[Step]
    families: list[str] = field(default_factory=list)


def rounding(steps: int) -> float:
    """Return the error over the largest value of a loop of float32, as docs/numerics.md has it.

    Parameters
    ----------
    steps : int
        Of the loop.
    """
    return 16 * float(np.finfo("float32").eps) * float(np.sqrt(max(16, steps)))


def of_function(func: tirx.PrimFunc, target: Target, plan: ScanPlan | Chooser | None) -> Content:
    """Return the content of a page for a function.

    Parameters
    ----------
    func : tirx.PrimFunc
        With a sequential time loop.
    target : tvm.target.Target
        What its kernels are for.
    plan : ScanPlan, callable or None
        As of ``parallelize``.

    Raises
    ------
    RefusalError
        If no nest of the function is a recurrence.
    ScanError
        If the plan does not fit, a dtype is none of the target's, or JavaScript lacks an operation.
    """
    name = str((func.attrs or {}).get("global_symbol", "main"))
    scheduled = parallelize(func, target, plan)
    analysis = analyse(func)
    program, loop = emit(scheduled, target, name), loop_of(func, name)
    extent = analysis.accepted[0].time.extent
    time = number_of(extent, named_extents(analysis.func))
    following = [str(var.name) for var in tir.variables(extent).keys()]
    steps = tir.as_int(extent) or STEPS
    stored = tir.buffers_stored(func.body)
    # What a recurrence reads of its own history is no input.
    read = tir.VarMap(
        (buffer, True)
        for buffer in tir.buffers_loaded(func.body).keys()
        if buffer not in stored or any(_reads(finding, buffer) for finding in analysis.accepted)
    )
    spans = spans_of(func, analysis, [param for param in func.params if param in read])
    arrays = [
        Operand(
            array,
            param in read,
            param in stored,
            spans.get(str(param.name)),
            _bound(analysis, array.name, steps) if param in stored else 0.0,
        )
        for param, array in zip(func.params, loop.parameters, strict=True)
    ]
    call: Step = {"call": name, "arguments": [array.name for array in loop.parameters]}
    families = [str(name) for loop in analysis.accepted for _, name, *_ in loop.families]
    return Content(
        name,
        {n: STEPS if n in following else OTHERS for _, n in named_extents(func).items()},
        time,
        following[0] if following else None,
        steps,
        arrays,
        {name: program},
        {name: loop},
        [call],
        [call],
        list(dict.fromkeys(families)),
    )


def _reads(finding: Recurrence | DeltaRule, buffer: tirx.Var) -> bool:
    return any(str(other.name) == str(buffer.name) for other in finding.inputs)


def _bound(analysis: Analysis, name: str, steps: int) -> float:
    """The promise of what writes an output; of what stands beside recurrences, its rounding."""
    for finding in analysis.accepted:
        for output in finding.outputs:
            if str(output.name) == name:
                return promise(finding, output).bound
    return rounding(steps)
