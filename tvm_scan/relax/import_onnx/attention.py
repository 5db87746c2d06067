"""The converter of ONNX's ``LinearAttention``, and of onnxruntime's of that name."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from tvm import relax, tirx

from tvm_scan import tir
from tvm_scan.loops.linear_attention import LinearAttention
from tvm_scan.relax.calls import call_loop
from tvm_scan.relax.import_onnx.shapes import fitted, text_attribute, three_extents, wrong
from tvm_scan.relax.operators import viewed

_OPERATOR = "LinearAttention"
_wrong = partial(wrong, _OPERATOR)
_RULES = ("linear", "gated", "delta", "gated_delta")
_INPUTS = ("query", "key", "value", "past_state", "decay", "beta")


def linear_attention(
    builder: relax.BlockBuilder, inputs: list[relax.Expr | None], attrs: dict[str, Any]
) -> relax.Tuple:
    """Convert the operator.

    Parameters
    ----------
    builder : relax.BlockBuilder
        Where to emit.
    inputs : list of relax.Expr or None
        Query, key, value, and if given the past state, the decay and the beta.
    attrs : dict
        Of the node.

    Returns
    -------
    relax.Tuple
        The output and the present state.

    Raises
    ------
    ScanError
        If the inputs do not fit the attributes.
    """
    by_name = dict(zip(_INPUTS, [*inputs, None, None, None], strict=False))
    op = _described(by_name, attrs)
    query = _shape(by_name, "query")
    matrices = [query[0], *map(_wide, (op.heads, op.keys, op.values))]
    args = []
    for name, split in op.heads_of.items():
        if name == "past_state":
            args.append(fitted(builder, _OPERATOR, name, by_name[name], matrices))
        elif name != "output":
            # A view looks at memory alone: tokens of another number would be read askew.
            tokens = [*query[:2], _wide(math.prod(split))]
            arg = fitted(builder, _OPERATOR, name, by_name[name], tokens, op.dtype)
            args.append(viewed(builder, arg, [*query[:2], *map(_wide, split)]))
    output, present = call_loop(builder, op.loop(), args, "linear_attention")
    packed = [*query[:2], _wide(op.heads * op.queries * op.values)]
    return relax.Tuple([viewed(builder, output, packed), present])


def _described(by_name: dict[str, Any], attrs: dict[str, Any]) -> LinearAttention:
    rule = text_attribute(attrs, "update_rule", "gated_delta")
    if rule not in _RULES:
        raise _wrong(f"an update_rule of {', '.join(_RULES)}", rule, "name one of them")
    for name, wanted in (("decay", "gated" in rule), ("beta", "delta" in rule)):
        if (by_name[name] is not None) != wanted:
            found = "one" if not wanted else "none"
            raise _wrong(
                f"{'a' if wanted else 'no'} {name} with update_rule {rule}", found, "see ONNX 27"
            )
    query_heads, heads = (int(attrs.get(f"{n}_num_heads", 0)) for n in ("q", "kv"))
    if heads <= 0 or query_heads <= 0 or max(query_heads, heads) % min(query_heads, heads):
        raise _wrong(
            "q_num_heads and kv_num_heads of which one is a multiple of the other",
            f"{query_heads} and {heads}",
            "give both",
        )
    query, key, value = (_shape(by_name, name) for name in ("query", "key", "value"))
    sizes = {n: tir.as_int(s[2]) for n, s in (("query", query), ("key", key), ("value", value))}
    keys, values = (sizes["query"] or 0) // query_heads, (sizes["value"] or 0) // heads
    of_keys = keys * min(query_heads, heads)
    if sizes != {"query": keys * query_heads, "key": of_keys, "value": values * heads}:
        raise _wrong("heads that divide queries, keys and values", str(sizes), "check the heads")
    widths = {
        n: 0 if by_name[n] is None else tir.as_int(_shape(by_name, n)[2]) for n in ("decay", "beta")
    }
    for name, allowed in (("decay", (heads, heads * keys)), ("beta", (heads, 1))):
        if by_name[name] is not None and widths[name] not in allowed:
            raise _wrong(
                f"{name} with a last extent of {allowed[0]} or {allowed[1]}",
                str(widths[name]),
                "check the heads",
            )
    dtype = str(by_name["query"].ty.dtype)
    past = by_name["past_state"]
    scale = float(attrs.get("scale", 0.0)) or keys**-0.5
    return LinearAttention(
        rule, query_heads, heads, keys, values, scale,
        tir.as_int(query[0]), tir.as_int(query[1]),
        dtype, dtype if past is None else str(past.ty.dtype),
        widths["decay"] or 0, widths["beta"] or 0, past is not None,
    )  # fmt: skip


def _shape(by_name: dict[str, Any], name: str) -> list[Any]:
    return three_extents(_OPERATOR, name, by_name[name])


def _wide(value: int) -> tirx.IntImm:
    return tirx.IntImm("int64", value)
