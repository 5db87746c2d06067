"""Every family in every form of loop: the product of steps and of ways to write a loop.

A step is an expression over ``h`` (the carry), ``x`` and ``g`` (inputs of the step). A form says
where the carry lives, how time runs and what is written.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from textwrap import dedent
from typing import Any

import tvm
from tvm.script import tirx as T

from tests.programs.suite.program import B, L, Range

__all__ = ["FORMS", "STEPS", "Step", "make"]


@dataclass(frozen=True)
class Step:
    """A step: its expression, dtype, initial value and family, and the range of its inputs."""

    expression: str
    dtype: str
    start: str
    family: str
    inputs: Range = (-1, 2)
    rounds: bool = False

    def __call__(self, h: str, x: str, g: str) -> str:
        """Source of the step with its three names replaced."""
        names = {"h": f"({h})", "x": f"({x})", "g": f"({g})"}
        return re.sub(r"(?<![\w.])[hxg](?!\w)", lambda found: names[found[0]], self.expression)


STEPS = {
    "sum": Step("h + x", "float32", "T.float32(0)", "reduce add"),
    "maximum": Step("T.max(h, x)", "int32", "-100", "reduce max", (-9, 10)),
    "affine": Step("h * g + x", "float32", "T.float32(1)", "affine"),
    "bounded": Step("T.min(T.max(h + x, -4), g + 5)", "int32", "0", "clamp", (-3, 4)),
    "bits": Step("T.bitwise_or(T.bitwise_and(h, g), x)", "int32", "5", "bitwise affine", (0, 99)),
    "residues": Step("(h * g + x) % 97", "int32", "3", "modular affine", (0, 99)),
    "flags": Step("T.Select(h, x, g)", "bool", "T.bool(False)", "two states"),
    "reset": Step(
        "T.if_then_else(g > T.float32(0), x, h + x)", "float32", "T.float32(1)", "segmented"
    ),
    "fraction": Step(
        "x + g / (h + T.float32(2))",
        "float32",
        "T.float32(1)",
        "linear fractional",
        (1, 5),
        rounds=True,
    ),
    "logarithm": Step(
        "T.max(h, x) + T.log(T.exp(h - T.max(h, x)) + T.exp(x - T.max(h, x)))",
        "float32",
        "T.float32(-3)",
        "logsumexp affine",
        (-4, 5),
        rounds=True,
    ),
}


def _at(index: str) -> tuple[str, str]:
    """Both inputs at an index."""
    return f"X[{index}]", f"G[{index}]"


#: The holes ROWS, START and DTYPE are filled by ``make``.
FORMS: dict[str, Callable[[Step], str]] = {
    "history, guarded by if_then_else": lambda s: (
        f"""
        def main(ROWS, H: T.Buffer((B, L), D)):
            for b, t in T.grid(B, L):
                H[b, t] = {s("T.if_then_else(t > 0, H[b, t - 1], START)", *_at("b, t"))}
        """
    ),
    "history, guarded by select": lambda s: (
        f"""
        def main(ROWS, H: T.Buffer((B, L + 1), D)):
            for b, t in T.grid(B, L):
                H[b, t + 1] = {s("T.Select(t == 0, START, H[b, t])", *_at("b, t"))}
        """
    ),
    "history of one step more": lambda s: (
        f"""
        def main(ROWS, H: T.Buffer((B, L + 1), D)):
            for b in range(B):
                H[b, 0] = START
                for t in range(L):
                    H[b, t + 1] = {s("H[b, t]", *_at("b, t"))}
        """
    ),
    "initial state in a nest before": lambda s: (
        f"""
        def main(ROWS, S: T.Buffer((B,), D), Y: T.Buffer((B, L), D)):
            for b in range(B):
                S[b] = START
            for b, t in T.grid(B, L):
                S[b] = {s("S[b]", *_at("b, t"))}
                Y[b, t] = S[b]
        """
    ),
    "state given, read before its update": lambda s: (
        f"""
        def main(ROWS, S: T.Buffer((B,), D), Y: T.Buffer((B, L), D)):
            for b, t in T.grid(B, L):
                Y[b, t] = S[b]
                S[b] = {s("S[b]", *_at("b, t"))}
        """
    ),
    "register of the lane": lambda s: (
        f"""
        def main(ROWS, Y: T.Buffer((B, L), D)):
            for b in range(B):
                s = T.alloc_buffer((1,), D, scope="local")
                s[0] = START
                for t in range(L):
                    s[0] = {s("s[0]", *_at("b, t"))}
                    Y[b, t] = s[0]
        """
    ),
    "last state only": lambda s: (
        f"""
        def main(ROWS, S: T.Buffer((B,), D)):
            for b in range(B):
                S[b] = START
                for t in range(L):
                    S[b] = {s("S[b]", *_at("b, t"))}
        """
    ),
    "backwards": lambda s: (
        f"""
        def main(ROWS, H: T.Buffer((B, L), D)):
            for b, t in T.grid(B, L):
                H[b, L - 1 - t] = {
            s("T.if_then_else(t > 0, H[b, L - t], START)", *_at("b, L - 1 - t"))
        }
        """
    ),
    "time outside": lambda s: (
        f"""
        def main(X: T.Buffer((L, B), D), G: T.Buffer((L, B), D), H: T.Buffer((L, B), D)):
            for t, b in T.grid(L, B):
                H[t, b] = {s("T.if_then_else(t > 0, H[t - 1, b], START)", *_at("t, b"))}
        """
    ),
    "scan axis of a block": lambda s: (
        f"""
        def main(ROWS, H: T.Buffer((B, L), D)):
            for b, t in T.grid(B, L):
                with T.sblock("scan"):
                    vb = T.axis.spatial(B, b)
                    vt = T.axis.scan(L, t)
                    T.reads(X[vb, vt], G[vb, vt], H[vb, vt - 1])
                    T.writes(H[vb, vt])
                    H[vb, vt] = {s("T.if_then_else(vt > 0, H[vb, vt - 1], START)", *_at("vb, vt"))}
        """
    ),
    "opaque axis, bound to threads": lambda s: (
        f"""
        def main(ROWS, S: T.Buffer((B,), D), Y: T.Buffer((B, L), D)):
            T.func_attr({{"tirx.is_scheduled": True}})
            for bx in T.thread_binding(2, thread="blockIdx.x"):
                for tx in T.thread_binding(2, thread="threadIdx.x"):
                    for t in range(L):
                        with T.sblock("scan"):
                            vb = T.axis.spatial(B, bx * 2 + tx)
                            vt = T.axis.opaque(L, t)
                            T.where(bx * 2 + tx < B)
                            S[vb] = {s("S[vb]", *_at("vb, vt"))}
                            Y[vb, vt] = S[vb]
        """
    ),
    "output is scratch": lambda s: (
        f"""
        def main(ROWS, Y: T.Buffer((B, L), D)):
            for b in range(B):
                for t in range(L):
                    Y[b, t] = X[b, t]
                    Y[b, t] = {s("T.if_then_else(t > 0, Y[b, t - 1], START)", "Y[b, t]", "G[b, t]")}
        """
    ),
    "in place": lambda s: (
        f"""
        def main(ROWS):
            for b in range(B):
                for t in range(1, L):
                    X[b, t] = {s("X[b, t - 1]", *_at("b, t"))}
        """
    ),
    "branch on the first step": lambda s: (
        f"""
        def main(ROWS, H: T.Buffer((B, L), D)):
            for b in range(B):
                for t in range(L):
                    if t == 0:
                        H[b, t] = X[b, t]
                    else:
                        H[b, t] = {s("H[b, t - 1]", *_at("b, t"))}
        """
    ),
    "one step": lambda s: (
        f"""
        def main(X: T.Buffer((B, 1), D), G: T.Buffer((B, 1), D), H: T.Buffer((B, 2), D)):
            for b in range(B):
                for t in range(1):
                    H[b, t + 1] = {s("H[b, t]", *_at("b, t"))}
        """
    ),
    "named steps and bindings": lambda s: (
        f"""
        def main(ROWS, S: T.Buffer((B,), D), Y: T.Buffer((B, L), D)):
            for b in range(B):
                for t in range(L):
                    old: T.let[T.DTYPE] = S[b]
                    new: T.let[T.DTYPE] = {s("old", *_at("b, t"))}
                    S[b] = new
                    Y[b, t] = new
        """
    ),
}


def make(form: str, step: str) -> Any:
    """The function of a form with a step in it."""
    chosen = STEPS[step]
    text = "@T.prim_func(s_tir=True)\n" + dedent(FORMS[form](chosen)).strip()
    for hole, value in (
        ("ROWS", "X: T.Buffer((B, L), D), G: T.Buffer((B, L), D)"),
        ("START", chosen.start),
        ("DTYPE", chosen.dtype),
    ):
        text = text.replace(hole, value)
    return tvm.script.from_source(text, {"T": T, "B": B, "L": L, "D": chosen.dtype})
