"""A step that a user wrote in torch, in a loop over time.

TVM's own importer translates the step, as it does for ``torch.export``.
"""

from typing import Any

import torch
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from tvm import relax, tirx
from tvm.s_tir import SBlock, SBlockRealize

from tvm_scan import tir
from tvm_scan.annotations import DECLARED
from tvm_scan.errors import ScanError
from tvm_scan.library.arguments import Expr
from tvm_scan.relax.step.lowered import LoweredStep, time_loop
from tvm_scan.schedules.common.ir import local, whole

from .frame import ATTRS, Frame

__all__ = ["pointwise_step", "sliced_step"]


def _lowered(graph: str, types: list[relax.TensorType]) -> LoweredStep:
    from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

    from tvm_scan.relax.import_torch.higher_order import lower_graph
    from tvm_scan.relax.import_torch.operators import CONVERTERS
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
        if not str(error).startswith("Unsupported function types"):
            raise
        names = str(error).removeprefix("Unsupported function types").strip()
        raise ScanError(
            f"tvm_scan.torch: expected a step of operators that TVM imports, got {names}; write "
            "the step with others"
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

    Parameters are the states before the walk (none for a `prefix`, whose states start as the
    first elements), and the inputs; then the states after it (none for a `prefix`), and what is
    emitted (for a `prefix`, the states).
    """
    step = _lowered(graph, [relax.TensorType([1], dtype) for dtype in dtypes])
    frame = Frame(outer, inner, length, time_last, reverse)
    results = [tir.dtype_of(b) for b in step.outputs]

    def buffers(name: str, shape: tuple[Expr, ...], kinds: list[str]) -> list[tirx.Var]:
        return [tirx.decl_buffer(shape, kind, f"{name}{i}") for i, kind in enumerate(kinds)]

    inits = [] if prefix else buffers("init", frame.state_shape, list(dtypes[:carries]))
    xs = buffers("x", frame.shape, list(dtypes[carries:]))
    lasts = [] if prefix else buffers("last", frame.state_shape, results[:carries])
    ys = buffers("y", frame.shape, results if prefix else results[carries:])
    states = [local(f"state{i}", [1], kind, "local") for i, kind in enumerate(dtypes[:carries])]
    fresh = [local(f"next{i}", [1], kind, "local") for i, kind in enumerate(dtypes[:carries])]
    zero = [tirx.IntImm("int32", 0)]

    def copies(pairs: Any) -> list[Any]:
        return [
            tirx.BufferStore(target, tirx.BufferLoad(source, at), to)
            for (target, to), (source, at) in pairs
        ]

    def lane(p: Expr, q: Expr) -> Any:
        def body(t: tirx.Var) -> Any:
            place = list(frame.at(p, q, t))
            held = [tirx.BufferLoad(b, zero) for b in states]
            read = [tirx.BufferLoad(b, place) for b in xs]
            values = _values(step, [*held, *read])
            if prefix:
                first = tirx.EQ(t, tir.zero_like(t))
                pairs = zip(read, values, strict=True)
                values = [tirx.op.if_then_else(first, x, v) for x, v in pairs]
            new, emitted = values[:carries], values[carries:]
            stores = [tirx.BufferStore(f, v, zero) for f, v in zip(fresh, new, strict=True)]
            moves = copies([((s, zero), (f, zero)) for s, f in zip(states, fresh, strict=True)])
            if prefix:
                emits = copies([((y, place), (s, zero)) for y, s in zip(ys, states, strict=True)])
                return tir.seq([*stores, *moves, *emits])
            emits = [tirx.BufferStore(y, v, place) for y, v in zip(ys, emitted, strict=True)]
            return tir.seq([*emits, *stores, *moves])

        if prefix:
            begin = [tirx.BufferStore(s, tirx.const(0, tir.dtype_of(s)), zero) for s in states]
            end = []
        else:
            begin = copies([((s, zero), (i, [p, q])) for s, i in zip(states, inits, strict=True)])
            end = copies([((o, [p, q]), (s, zero)) for o, s in zip(lasts, states, strict=True)])
        return tir.seq([*begin, _loop("t", length, body), *end])

    block = SBlock(
        [],
        [whole(b) for b in (*inits, *xs)],
        [whole(b) for b in (*lasts, *ys)],
        "scan",
        _loop("p", outer, lambda p: _loop("q", inner, lambda q: lane(p, q))),
        None,
        [*states, *fresh],
    )
    root = SBlockRealize([], True, SBlock([], [], [], "root", SBlockRealize([], True, block)))
    func = tirx.PrimFunc([*inits, *xs, *lasts, *ys], root).with_attrs({**ATTRS, "s_tir": True})
    return func.with_attr(DECLARED, [str(b.name) for b in xs]) if prefix else func


def _loop(name: str, extent: Expr, body: Any) -> Any:
    """A loop, also where it runs once: plans are made for constant extents."""
    var = tirx.Var(name, "int64")
    return tirx.For(var, tir.zero_like(var), extent, tirx.ForKind.SERIAL, body(var))


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
