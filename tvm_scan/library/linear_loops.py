"""The loops of `linear`: two forms, each for one lane axis and for batch and lane axes.

The annotations below are evaluated by the script parser (see `cumulative`).
"""

from dataclasses import dataclass

from tvm import tirx
from tvm.script import tirx as T

from .arguments import Expr, alloc_state


@dataclass(frozen=True)
class LinearForm:
    """The checked options of one linear recurrence; `batch` is None when there is no such axis."""

    batch: Expr | None
    lanes: Expr
    length: Expr
    dtype: str
    time_axis: int
    gate: float | str
    initial_state: bool
    final_state: bool
    reverse: bool
    exclusive: bool
    attrs: dict[str, object]

    @property
    def state_shape(self) -> tuple[Expr, ...]:
        """The shape of the carried state: all axes but time."""
        return (self.lanes,) if self.batch is None else (self.batch, self.lanes)

    def at(self, lane: tuple[Expr, ...], step: Expr) -> tuple[Expr, ...]:
        """Return the indices of the element of `lane` that the loop reaches at `step`."""
        return self._insert(lane, self.length - 1 - step if self.reverse else step)

    @property
    def shape(self) -> tuple[Expr, ...]:
        """The shape of the inputs and of the history."""
        return self._insert(self.state_shape, self.length)

    @property
    def gate_shape(self) -> tuple[Expr, ...]:
        """The shape of the gate buffer."""
        return self.shape if self.gate == "time" else (self.lanes,)

    def _insert(self, lane: tuple[Expr, ...], time: Expr) -> tuple[Expr, ...]:
        return (*lane[: self.time_axis], time, *lane[self.time_axis :])

    def step(self, A: tirx.Var, before: Expr, x: Expr, lane: tuple[Expr, ...], step: Expr) -> Expr:
        """Write the right-hand side ``a * before + x``."""
        if self.gate == "time":
            return A[self.at(lane, step)] * before + x
        if self.gate == "lane":
            return A[lane[-1]] * before + x
        return tirx.const(self.gate, self.dtype) * before + x

    def initial(self, H0: tirx.Var, lane: tuple[Expr, ...]) -> Expr:
        """Return the state before the first step."""
        return H0[lane] if self.initial_state else tirx.const(0, self.dtype)


def history_loop(form: LinearForm) -> tirx.PrimFunc:
    """``H[t] = a * (t > 0 ? H[t-1] : init) + X[t]``: the state is read back from the output."""
    B, D, L, dtype = form.batch, form.lanes, form.length, form.dtype
    at, step, initial, attrs = form.at, form.step, form.initial, form.attrs

    if B is None:

        @T.prim_func(s_tir=True)
        def lanes_only(
            A: T.Buffer(form.gate_shape, dtype),
            X: T.Buffer(form.shape, dtype),
            H0: T.Buffer(form.state_shape, dtype),
            H: T.Buffer(form.shape, dtype),
        ) -> None:
            T.func_attr(attrs)
            for d, t in T.grid(D, L):
                with T.sblock("scan"):
                    vd = T.axis.spatial(D, d)
                    vt = T.axis.scan(L, t)
                    H[at((vd,), vt)] = step(
                        A,
                        T.if_then_else(vt > 0, H[at((vd,), vt - 1)], initial(H0, (vd,))),
                        X[at((vd,), vt)],
                        (vd,),
                        vt,
                    )

        return lanes_only

    @T.prim_func(s_tir=True)
    def batched(
        A: T.Buffer(form.gate_shape, dtype),
        X: T.Buffer(form.shape, dtype),
        H0: T.Buffer(form.state_shape, dtype),
        H: T.Buffer(form.shape, dtype),
    ) -> None:
        T.func_attr(attrs)
        for b, d, t in T.grid(B, D, L):
            with T.sblock("scan"):
                vb, vd = T.axis.remap("SS", [b, d])
                vt = T.axis.scan(L, t)
                H[at((vb, vd), vt)] = step(
                    A,
                    T.if_then_else(vt > 0, H[at((vb, vd), vt - 1)], initial(H0, (vb, vd))),
                    X[at((vb, vd), vt)],
                    (vb, vd),
                    vt,
                )

    return batched


def state_loop(form: LinearForm) -> tirx.PrimFunc:
    """``S = a * S + X[t]`` in place, emitted before or after; `S` is `HN` when that is wanted."""
    B, D, L, dtype = form.batch, form.lanes, form.length, form.dtype
    at, step, initial, attrs = form.at, form.step, form.initial, form.attrs
    final_state, exclusive = form.final_state, form.exclusive

    if B is None:

        @T.prim_func(s_tir=True)
        def lanes_only(
            A: T.Buffer(form.gate_shape, dtype),
            X: T.Buffer(form.shape, dtype),
            H0: T.Buffer(form.state_shape, dtype),
            H: T.Buffer(form.shape, dtype),
            HN: T.Buffer(form.state_shape, dtype),
        ) -> None:
            T.func_attr(attrs)
            S = T.meta_var(HN if final_state else alloc_state(form.state_shape, dtype))
            for d in range(D):
                with T.sblock("init"):
                    vd = T.axis.spatial(D, d)
                    S[vd] = initial(H0, (vd,))
                for t in range(L):
                    with T.sblock("scan"):
                        vd = T.axis.spatial(D, d)
                        vt = T.axis.scan(L, t)
                        if exclusive:
                            H[at((vd,), vt)] = S[vd]
                            S[vd] = step(A, S[vd], X[at((vd,), vt)], (vd,), vt)
                        else:
                            S[vd] = step(A, S[vd], X[at((vd,), vt)], (vd,), vt)
                            H[at((vd,), vt)] = S[vd]

        return lanes_only

    @T.prim_func(s_tir=True)
    def batched(
        A: T.Buffer(form.gate_shape, dtype),
        X: T.Buffer(form.shape, dtype),
        H0: T.Buffer(form.state_shape, dtype),
        H: T.Buffer(form.shape, dtype),
        HN: T.Buffer(form.state_shape, dtype),
    ) -> None:
        T.func_attr(attrs)
        S = T.meta_var(HN if final_state else alloc_state(form.state_shape, dtype))
        for b, d in T.grid(B, D):
            with T.sblock("init"):
                vb, vd = T.axis.remap("SS", [b, d])
                S[vb, vd] = initial(H0, (vb, vd))
            for t in range(L):
                with T.sblock("scan"):
                    vb, vd = T.axis.remap("SS", [b, d])
                    vt = T.axis.scan(L, t)
                    if exclusive:
                        H[at((vb, vd), vt)] = S[vb, vd]
                        S[vb, vd] = step(A, S[vb, vd], X[at((vb, vd), vt)], (vb, vd), vt)
                    else:
                        S[vb, vd] = step(A, S[vb, vd], X[at((vb, vd), vt)], (vb, vd), vt)
                        H[at((vb, vd), vt)] = S[vb, vd]

    return batched
