"""ONNX's ``LinearAttention`` as a sequential loop over tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import relax, tirx
from tvm.ir import Var
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from tvm_scan import tir
from tvm_scan.annotations import OP_PATTERN, OPAQUE_PATTERN
from tvm_scan.errors import ScanError
from tvm_scan.relax.loops import call_loop
from tvm_scan.relax.operators import viewed

__all__ = ["LinearAttention", "linear_attention"]

_RULES = ("linear", "gated", "delta", "gated_delta")
_INPUTS = ("query", "key", "value", "past_state", "decay", "beta")


@dataclass(frozen=True)
class LinearAttention:
    """The attributes of the operator, and what its inputs say.

    Attributes
    ----------
    rule : str
        ``linear``, ``gated``, ``delta`` or ``gated_delta``.
    query_heads, heads : int
        Heads of the queries, and of keys, values and states.
    keys, values : int
        Elements of a key and of a value, for one head.
    scale : float
        Factor of the output.
    batch, length : int or None
        None makes an extent symbolic.
    dtype, state_dtype : str
        Of the tokens, and of the state.
    decays : int
        Decays of one token: one for each head, or for each element of its key.
    betas : int
        Update rates of one token: one for each head, or one.
    has_past : bool
        Whether there is an initial state.
    """

    rule: str
    query_heads: int
    heads: int
    keys: int
    values: int
    scale: float
    batch: int | None
    length: int | None
    dtype: str
    state_dtype: str
    decays: int
    betas: int
    has_past: bool

    def loop(self) -> tirx.PrimFunc:
        """The operator; inputs that it does not have are left out.

        The state of a head is a matrix of ``keys`` x ``values``; each of its columns is a
        recurrence of its own: ``S = exp(g) S + k v`` for the rules without delta, which is
        affine in every element, and ``S = exp(g) S + b k (v - exp(g) S . k)`` for those with it.
        """
        batch = tirx.Var("batch", "int64") if self.batch is None else _int(self.batch)
        length = tirx.Var("length", "int64") if self.length is None else _int(self.length)
        matrices = [batch, _int(self.heads), _int(self.keys), _int(self.values)]
        with IRBuilder() as builder, T.prim_func(is_private=True, s_tir=True):
            T.func_name("linear_attention")
            T.func_attr({"tirx.noalias": True, OP_PATTERN: OPAQUE_PATTERN})
            buffers: dict[str, Var] = {}
            for name, split in self.heads_of.items():
                shape = [batch, length, *map(_int, split)]
                if name == "past_state":
                    buffers[name] = T.arg(name, T.Buffer(matrices, self.state_dtype))
                else:
                    buffers[name] = T.arg(name, T.Buffer(shape, self.dtype))
            output = buffers.pop("output")
            present = T.arg("present_state", T.Buffer(matrices, self.state_dtype))
            state = present
            if self.state_dtype != "float32":
                state = T.sblock_alloc_buffer(matrices, "float32")
                IRBuilder.name("state", state)
            first = buffers.get("past_state")
            self._copy("start", matrices, state, first)
            with T.grid(*matrices[:2], matrices[3], length) as loops, T.sblock("token"):
                b, h, v = (
                    T.axis.spatial(n, loop)
                    for n, loop in zip((*matrices[:2], matrices[3]), loops, strict=False)
                )
                t = T.axis.scan(length, loops[3])
                column = state[b, h, 0 : self.keys, v]
                read = [_token_of(x, b, t) for k, x in buffers.items() if k != "past_state"]
                T.reads(*read, column)
                T.writes(column, _token_of(output, b, t))
                self._token(buffers, state, output, [b, t], h, v)
            if state is not present:
                self._copy("finish", matrices, present, state)
        return builder.get()

    @property
    def heads_of(self) -> dict[str, tuple[int, ...]]:
        """Extents of a token by head, of every input that there is and of the output, in order."""
        group = self.query_heads // self.heads
        found = {
            "query": (self.heads, group, self.keys),
            "key": (self.heads, self.keys),
            "value": (self.heads, self.values),
        }
        if self.has_past:
            found["past_state"] = ()
        if self.decays:
            found["decay"] = (self.heads, self.decays // self.heads)
        if self.betas:
            found["beta"] = (self.betas,)
        return found | {"output": (self.heads, group, self.values)}

    def _copy(self, name: str, shape: list[Any], target: Var, source: Var | None) -> None:
        with T.grid(*shape) as loops, T.sblock(name):
            place = [T.axis.spatial(n, loop) for n, loop in zip(shape, loops, strict=True)]
            T.reads([] if source is None else [source[tuple(place)]])
            T.writes([target[tuple(place)]])
            dtype = tir.dtype_of(target)
            value = tirx.const(0.0, dtype)
            if source is not None:
                value = _cast(source[tuple(place)], dtype)
            T.buffer_store(target, value, place)

    def _token(
        self, buffers: dict[str, Var], state: Var, output: Var, token: list[Any], h: Any, v: Any
    ) -> None:
        def read(name: str, *index: Any) -> Any:
            return _cast(buffers[name][(*token, *index)], "float32")

        def decayed(i: Any) -> Any:
            cell = state[token[0], h, i, v]
            if "decay" not in buffers:
                return cell
            each = _int(0) if self.decays == self.heads else i
            return tirx.exp(read("decay", h, each)) * cell

        update: Any = read("value", h, v)
        if "beta" in buffers:
            known = T.sblock_alloc_buffer([1], "float32", scope="local")
            IRBuilder.name("known", known)
            T.buffer_store(known, tirx.const(0.0, "float32"), [0])
            with T.serial(_int(self.keys)) as i:
                T.buffer_store(known, known[0] + decayed(i) * read("key", h, i), [0])
            rate = read("beta", _int(0) if self.betas == 1 else h)
            update = rate * (update - known[0])
        with T.serial(_int(self.keys)) as i:
            T.buffer_store(state, decayed(i) + read("key", h, i) * update, [token[0], h, i, v])
        with T.serial(_int(self.query_heads // self.heads)) as r:
            total = T.sblock_alloc_buffer([1], "float32", scope="local")
            IRBuilder.name("total", total)
            T.buffer_store(total, tirx.const(0.0, "float32"), [0])
            with T.serial(_int(self.keys)) as i:
                product = read("query", h, r, i) * state[token[0], h, i, v]
                T.buffer_store(total, total[0] + product, [0])
            result = total[0] * tirx.const(self.scale, "float32")
            T.buffer_store(output, _cast(result, self.dtype), [*token, h, r, v])


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
    given = dict(zip(_INPUTS, [*inputs, None, None, None], strict=False))
    op = _described(given, attrs)
    query = _shape(given, "query")
    args = []
    for name, split in op.heads_of.items():
        arg = given.get(name)
        if name == "past_state":
            args.append(arg)
        elif name != "output":
            args.append(viewed(builder, arg, [*query[:2], *map(_int, split)]))
    output, present = call_loop(builder, op.loop(), args, "linear_attention")
    packed = [*query[:2], _int(op.query_heads * op.values)]
    return relax.Tuple([viewed(builder, output, packed), present])


def _described(given: dict[str, Any], attrs: dict[str, Any]) -> LinearAttention:
    rule = attrs.get("update_rule", "gated_delta")
    rule = rule.decode() if isinstance(rule, bytes) else str(rule)
    if rule not in _RULES:
        raise _wrong(f"an update_rule of {', '.join(_RULES)}", rule, "name one of them")
    for name, wanted in (("decay", "gated" in rule), ("beta", "delta" in rule)):
        if (given[name] is not None) != wanted:
            found = "one" if not wanted else "none"
            raise _wrong(
                f"{'a' if wanted else 'no'} {name} with update_rule {rule}", found, "see ONNX 27"
            )
    query_heads, heads = (int(attrs.get(f"{n}_num_heads", 0)) for n in ("q", "kv"))
    if heads <= 0 or query_heads <= 0 or query_heads % heads:
        raise _wrong(
            "q_num_heads as a positive multiple of kv_num_heads",
            f"{query_heads} and {heads}",
            "give both",
        )
    query, key, value = (_shape(given, name) for name in ("query", "key", "value"))
    sizes = {n: tir.as_int(s[2]) for n, s in (("query", query), ("key", key), ("value", value))}
    keys, values = (sizes["query"] or 0) // query_heads, (sizes["value"] or 0) // heads
    if sizes != {"query": keys * query_heads, "key": keys * heads, "value": values * heads}:
        raise _wrong("heads that divide queries, keys and values", str(sizes), "check the heads")
    widths = {
        n: 0 if given[n] is None else tir.as_int(_shape(given, n)[2]) for n in ("decay", "beta")
    }
    for name, allowed in (("decay", (heads, heads * keys)), ("beta", (heads, 1))):
        if given[name] is not None and widths[name] not in allowed:
            raise _wrong(
                f"{name} with a last extent of {allowed[0]} or {allowed[1]}",
                str(widths[name]),
                "check the heads",
            )
    dtype = str(given["query"].ty.dtype)
    past = given["past_state"]
    scale = float(attrs.get("scale", 0.0)) or keys**-0.5
    return LinearAttention(
        rule, query_heads, heads, keys, values, scale,
        tir.as_int(query[0]), tir.as_int(query[1]),
        dtype, dtype if past is None else str(past.ty.dtype),
        widths["decay"] or 0, widths["beta"] or 0, past is not None,
    )  # fmt: skip


def _shape(given: dict[str, Any], name: str) -> list[Any]:
    shape = None if given[name] is None else given[name].ty.shape
    if not isinstance(shape, relax.ShapeExpr) or len(shape.values) != 3:
        raise _wrong(f"{name} of three known extents", str(shape), "give its shape")
    return list(shape.values)


def _wrong(expected: str, found: str, fix: str) -> ScanError:
    return ScanError(f"LinearAttention: expected {expected}, got {found}; {fix}")


def _int(value: int) -> tirx.IntImm:
    return tirx.IntImm("int64", value)


def _token_of(buffer: Var, b: Any, t: Any) -> Any:
    """All that a buffer has of one token."""
    return buffer[(b, t, *(slice(0, extent) for extent in tir.shape_of(buffer)[2:]))]


def _cast(value: Any, dtype: str) -> Any:
    return value if tir.dtype_of(value) == dtype else tirx.Cast(dtype, value)
