"""ONNX's ``LinearAttention`` as a sequential loop over tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.ir import Var
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from tvm_scan import tir
from tvm_scan.annotations import OP_PATTERN, OPAQUE_PATTERN

__all__ = ["LinearAttention"]


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
            cell = (*token, *index)
            return _cast(buffers[name][cell], "float32")

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


def _int(value: int) -> tirx.IntImm:
    return tirx.IntImm("int64", value)


def _token_of(buffer: Var, b: Any, t: Any) -> Any:
    """All that a buffer has of one token."""
    cells = (b, t, *(slice(0, extent) for extent in tir.shape_of(buffer)[2:]))
    return buffer[cells]


def _cast(value: Any, dtype: str) -> Any:
    return value if tir.dtype_of(value) == dtype else tirx.Cast(dtype, value)
