"""A step that a user wrote in torch, as a loop over time.

TVM's own importer translates the step, as it does for ``torch.export``.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from tvm import relax, tirx
from tvm.ir import Expr

from tvm_scan import tir
from tvm_scan.annotations import DECLARED
from tvm_scan.errors import ScanError
from tvm_scan.loops.declared import operator_loop, step_loop
from tvm_scan.loops.frame import Frame
from tvm_scan.relax.step.lowered import LoweredStep, time_loop


def _lowered(graph: str, types: list[relax.TensorType]) -> LoweredStep:
    from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

    from tvm_scan.relax.import_torch.higher_order import lower_graph
    from tvm_scan.relax.import_torch.operators import CONVERTERS
    from tvm_scan.relax.repairs.torch_importer import unimported
    from tvm_scan.torch.trace.graph import graph_module

    # Some converters ask what torch makes of a node.
    stand_ins = [
        torch.empty([int(n) for n in t.shape.values], dtype=getattr(torch, str(t.dtype)))
        for t in types
    ]
    module = graph_module.__wrapped__(graph)
    FakeTensorProp(module).propagate(*stand_ins)
    try:
        step = lower_graph(ExportedProgramImporter(), CONVERTERS, module, types)
    except AssertionError as error:
        raise ScanError(
            "tvm_scan.torch: expected a step of operators that TVM imports, got "
            f"{unimported(error)}; write the step with others"
        ) from error
    if step.constants:
        raise ScanError(
            "tvm_scan.torch: expected a step without constant tensors, got one of "
            f"{step.constants[0].ty}; pass it to the loop as an input that all steps share"
        )
    return step


def pointwise_step(
    outer: Expr,
    inner: Expr,
    length: Expr,
    *,
    graph: str,
    dtypes: tuple[str, ...],
    time_last: bool,
    carries: int,
    prefix: bool,
    reverse: bool,
) -> tirx.PrimFunc:
    """Build a loop of a step that treats every element alike, over the arrays of a `Frame`.

    Parameters are the states before the scan (none for a `prefix`, whose states start as the
    first elements), and the inputs; then the states after it (none for a `prefix`), and what is
    emitted (for a `prefix`, the states).
    """
    step = _lowered(graph, [relax.TensorType([1], dtype) for dtype in dtypes])
    frame = Frame(outer, inner, length, time_last, reverse)
    emits = [tir.dtype_of(b) for b in step.outputs][carries:]

    def write(held: Sequence[Expr], read: Sequence[Expr]) -> tuple[list[Expr], list[Expr]]:
        values = _values(step, [*held, *read])
        return values[:carries], values[carries:]

    if not prefix:
        return step_loop(frame, write, dtypes[:carries], dtypes[carries:], emits)
    func = operator_loop(frame, lambda *operands: write(*operands)[0], dtypes[:carries])
    return func.with_attr(DECLARED, [f"x{i}" for i in range(carries)])


def _values(step: LoweredStep, inputs: list[Any]) -> list[Any]:
    """Values that the step stores, as expressions of the values of its inputs."""
    known = tir.VarMap(zip(step.inputs, inputs, strict=True))

    def value(load: Any) -> Any:
        return known.get(load.source, load)

    for nest in step.body:
        if not isinstance(nest, tirx.BufferStore):
            raise ScanError(f"tvm_scan.torch: expected an elementwise step, got\n{nest}")
        known[nest.buffer] = tir.map_loads(nest.value, value)
    return [known[buffer] for buffer in step.outputs]


def sliced_step(
    length: Expr,
    *,
    graph: str,
    dtypes: tuple[str, ...],
    shapes: tuple[tuple[int, ...], ...],
    carries: int,
    slices: int,
    prefix: bool,
    reverse: bool,
) -> tirx.PrimFunc:
    """Build a loop of any step, over arrays with time as their first axis."""
    pairs = zip(shapes, dtypes, strict=True)
    step = _lowered(graph, [relax.TensorType(list(s), d) for s, d in pairs])
    func = time_loop(
        step,
        length=tir.as_int(length),
        carries=carries,
        slices=slices,
        prefix=prefix,
        reverse=reverse,
    )
    return func.with_attr("global_symbol", "main")
