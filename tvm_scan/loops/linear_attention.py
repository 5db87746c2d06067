"""ONNX's ``LinearAttention`` as a sequential loop over tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.ir import Expr

from tvm_scan.library.arguments import make_extent
from tvm_scan.loops.delta import Matrix, Step, key_head, write_read, write_step
from tvm_scan.loops.writer import Cells, Loop

#: Dtype of states and of a step.
_WIDE = "float32"


@dataclass(frozen=True)
class LinearAttention:
    """The attributes of the operator, and what its inputs say.

    Attributes
    ----------
    rule : str
        ``linear``, ``gated``, ``delta`` or ``gated_delta``.
    query_heads, heads : int
        Heads of the queries, and of values and states. The keys have the fewer of both: several
        queries share a key, or several values do.
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
        batch, heads, keys, values, length = (
            make_extent("linear_attention", name, getattr(self, name))
            for name in ("batch", "heads", "keys", "values", "length")
        )
        matrices = (batch, heads, keys, values)
        with Loop() as loop:
            arrays: dict[str, Cells] = {}
            for name, split in self.heads_of.items():
                if name == "past_state":
                    arrays[name] = loop.array(name, matrices, self.state_dtype, _WIDE)
                else:
                    extents = [tirx.IntImm("int64", n) for n in split]
                    arrays[name] = loop.array(name, (batch, length, *extents), self.dtype, _WIDE)
            present = loop.array("present_state", matrices, self.state_dtype, _WIDE)
            state = present if self.state_dtype == _WIDE else loop.state(matrices, _WIDE)
            with loop.lanes("bhkv", *matrices), loop.begin("start") as cell:
                state[cell] = arrays["past_state"][cell] if self.has_past else 0
            with (
                loop.lanes("bhv", batch, heads, values),
                loop.steps(length, "token") as ((b, h, v), t),
            ):
                self._token(loop, arrays, state, (b, t), h, v)
            if state is not present:
                with loop.lanes("bhkv", *matrices), loop.begin("finish") as cell:
                    present[cell] = state[cell]
        return loop.func

    @property
    def heads_of(self) -> dict[str, tuple[int, ...]]:
        """Extents of a token by head, of every input that there is and of the output, in order."""
        group, shared = self.queries, self.heads // self.sharing
        shapes = {
            "query": (shared, group, self.keys),
            "key": (shared, self.keys),
            "value": (self.heads, self.values),
        }
        if self.has_past:
            shapes["past_state"] = ()
        if self.decays:
            shapes["decay"] = (self.heads, self.decays // self.heads)
        if self.betas:
            shapes["beta"] = (self.betas,)
        return shapes | {"output": (self.heads, group, self.values)}

    @property
    def queries(self) -> int:
        """Number of queries that share a key."""
        return max(1, self.query_heads // self.heads)

    @property
    def sharing(self) -> int:
        """Number of values that share a key."""
        return max(1, self.heads // self.query_heads)

    def _token(
        self, loop: Loop, arrays: dict[str, Cells], state: Cells, token: Any, h: Expr, v: Expr
    ) -> None:
        keys, zero = tirx.IntImm("int64", self.keys), tirx.IntImm("int64", 0)
        shared = key_head(h, self.sharing)

        def read(name: str, *index: Expr) -> Expr:
            return arrays[name][token, index]

        def gate(i: Expr) -> Expr:
            return tirx.exp(read("decay", h, zero if self.decays == self.heads else i))

        step = Step(
            into=lambda i: read("key", shared, i),
            drive=lambda v: read("value", h, v),
            gate=gate if self.decays else None,
            rate=read("beta", zero if self.betas == 1 else h) if self.betas else None,
        )
        matrix = Matrix(state, lambda i, _, v: (token[0], h, i, v))
        write_step(loop, keys, _WIDE, step, matrix, v)
        total = loop.cell("total", _WIDE, scope="local")
        with loop.over(tirx.IntImm("int64", self.queries), "r") as r:
            write_read(loop, keys, lambda i: read("query", shared, r, i), matrix, v, total)
            arrays["output"][token, h, r, v] = total[0] * tirx.const(self.scale, _WIDE)
