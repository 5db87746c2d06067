"""Converters for torch's ``scan`` and ``associative_scan``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tvm import relax, tirx

from tvm_scan import tir
from tvm_scan.annotations import DECLARED
from tvm_scan.extraction import extract
from tvm_scan.recurrence import Recurrence, Refusal
from tvm_scan.relax.calls import call_loop
from tvm_scan.relax.step.lowered import LoweredStep, lower_step, time_loop
from tvm_scan.schedules.verification.laws import check_laws

Converters = Mapping[str, Callable[[Any, Any], Any]]


def convert_scan(
    node: Any, importer: Any, converters: Converters, *, prefix: bool = False
) -> list[relax.Expr]:
    """Convert ``scan(combine, inits, xs, shared)``: final carries, then what was emitted.

    A `prefix` is ``associative_scan(combine, xs, shared)``: an inclusive scan along axis 0.
    """
    combine, *groups = node.args
    groups = [(), *groups] if prefix else groups
    inits, xs, shared = ([importer.env[n] for n in group] for group in groups)
    slices = [relax.TensorType(x.ty.shape.values[1:], x.ty.dtype) for x in xs]
    starts = slices if prefix else [e.ty for e in inits]
    types = [*starts, *slices, *(e.ty for e in shared)]
    step = lower_graph(importer, converters, importer.env[combine], types)
    length = tir.as_int(xs[0].ty.shape.values[0])
    loop = time_loop(step, length=length, carries=len(starts), slices=len(xs), prefix=prefix)
    if prefix:
        loop = declared(loop, len(xs))
    name = "associative_scan" if prefix else "scan"
    return call_loop(importer.block_builder, loop, [*inits, *xs, *shared, *step.constants], name)


def declared(loop: tirx.PrimFunc, parts: int) -> tirx.PrimFunc:
    """Give `loop` torch's word for it that its operator is associative, where no proof is found.

    The word is tried on samples; where it does not hold, the loop stays a loop, which gives the
    result of the order in which it is written.

    Parameters
    ----------
    loop : tirx.PrimFunc
        An inclusive scan.
    parts : int
        How many of its first parameters are the operands.
    """
    if isinstance(extract(loop), Recurrence):
        return loop
    named = loop.with_attr(DECLARED, [str(buffer.name) for buffer in loop.params[:parts]])
    recurrence = extract(named)
    if isinstance(recurrence, Refusal):
        return loop
    worst = max(check_laws(recurrence), key=lambda law: law.largest_error)
    if worst.largest_error > _LARGEST_ERROR:
        _LOG.info(
            "associative_scan stays a loop: expected an associative operator, found %s off by "
            "%.1e of the largest value",
            worst.law,
            worst.largest_error,
        )
        return loop
    return named


#: Of the two sides of a law on samples, in float32 or finer.
_LARGEST_ERROR = 1e-3
_LOG = logging.getLogger("tvm_scan")


def lower_graph(
    importer: Any, converters: Converters, graph: Any, types: Sequence[relax.TensorType]
) -> LoweredStep:
    """Lower a graph of torch operators, given the types of its placeholders.

    Parameters
    ----------
    importer : ExportedProgramImporter
        Whose kind imports the graph.
    converters : mapping of str to callable
        What it is given beyond TVM's own.
    graph : torch.fx.GraphModule
        What happens in a step.
    types : sequence of relax.TensorType
        Of its placeholders.
    """

    def write(builder: relax.BlockBuilder, params: list[relax.Var]) -> Sequence[relax.Expr]:
        inner = type(importer)()
        inner.block_builder = builder
        inner.update_convert_map(dict(converters))
        nodes = list(graph.graph.nodes)
        inner._check_unsupported_func_type(nodes)
        holders = [n for n in nodes if n.op == "placeholder"]
        inner.env = dict(zip(holders, params, strict=True))
        outputs: Sequence[Any] = inner._translate_fx_graph(graph, nodes, {}, set(converters))
        return outputs

    return lower_step(types, write)
