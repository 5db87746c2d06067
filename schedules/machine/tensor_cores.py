"""Products of float32 matrices on tensor cores: each factor is two numbers of tf32.

tf32 has float32's exponents and 11 bits. ``x = big + small``, where ``big`` is x rounded to 11 bits
and ``small = x - big``, which float32 holds exactly, in 12 bits at most. Of the four products

    a b = big_a big_b + (big_a small_b + small_a big_b) + small_a small_b

the first three are made, and summed in float32, the first apart from the others. This is known as
3xTF32 (CUTLASS, example 27; Ootomo and Yokota, 2022, arXiv 2203.03341).

Error. With u = 2^-24: |small| <= 2^-11 |x|, so that the last product is at most 2^-22 |a b| = 4 u.
An instruction ignores the low 13 bits of a number, of ``small`` one bit: 2^-23 |x| = 2 u of each
factor. So a product is off by at most 8 u |a b|, and by no more than that whatever is summed. How a
tensor core rounds a sum NVIDIA leaves open; devices cut it to 24 bits or a few more, which for 8
terms, what is there and the sum is at most 10 units of 2^-23. Those of the small products are 2^-10
of that. A sum of n products is then within (8 + 2.5 n) u of the sum of their sizes, and n
multiply-adds are within n u of it.

A NaN stays one, an infinity becomes NaN, as do numbers from (1 - 2^-12) 2^128 on, in the rows and
columns of the result that they are in.

Fragments of ``mma.sync.aligned.m16n8k8``, with thread = 4 g + f: of A (16 x 8) a thread holds
(g, f), (g + 8, f), (g, f + 4), (g + 8, f + 4); of B (8 x 8) (f, g) and (f + 4, g); of the sums
(16 x 8) (g, 2 f), (g, 2 f + 1), (g + 8, 2 f), (g + 8, 2 f + 1). All threads of a warp come to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx
from tvm.ir import Var
from tvm.script import tirx as T

#: Floats of a fragment of A, or of sums: the four big ones, then the four small ones.
FRAGMENT = 8

_SPLIT = """
__forceinline__ __device__ void scan_split_tf32(float* parts, float x0, float x1, float x2,
                                                float x3) {
  const float x[4] = {x0, x1, x2, x3};
  for (int i = 0; i < 4; ++i) {
    parts[i] = __uint_as_float((__float_as_uint(x[i]) + 0x1000u) & 0xffffe000u);
    parts[i + 4] = x[i] - parts[i];
  }
}
"""
_MMA = (
    "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
    "{%8, %9}, {%10, %11, %12, %13};"
)


def _made(sums: int, a: str, b: str) -> str:
    """One instruction: sums from ``sums`` on, of the fragments named."""

    def operands(kind: str, cells: list[str]) -> str:
        return ", ".join(f'"{kind}"({cell})' for cell in cells)

    cells = [f"s[{sums + i}]" for i in range(4)]
    words = [*(f"{a}[{i}]" for i in range(4)), *(f"{b}[{i}]" for i in range(2))]
    return (
        f'  asm volatile("{_MMA}"\n'
        f"      : {operands('=f', cells)}\n"
        f"      : {operands('r', words)},\n"
        f"        {operands('f', cells)});\n"
    )


_MULTIPLY = (
    """
__forceinline__ __device__ void scan_multiply_tf32(float* s, const float* a, float b0, float b1) {
  unsigned big_a[4], small_a[4], big_b[2], small_b[2];
  for (int i = 0; i < 4; ++i) {
    big_a[i] = __float_as_uint(a[i]);
    small_a[i] = __float_as_uint(a[i + 4]);
  }
  big_b[0] = (__float_as_uint(b0) + 0x1000u) & 0xffffe000u;
  big_b[1] = (__float_as_uint(b1) + 0x1000u) & 0xffffe000u;
  small_b[0] = __float_as_uint(b0 - __uint_as_float(big_b[0]));
  small_b[1] = __float_as_uint(b1 - __uint_as_float(big_b[1]));
"""
    + _made(4, "small_a", "big_b")
    + _made(4, "big_a", "small_b")
    + _made(0, "big_a", "big_b")
    + "}\n"
)


def split(parts: Var, at: Any, cells: Sequence[Any]) -> Any:
    """Statement that makes a fragment of A, its big and small numbers, of a thread's four cells.

    Parameters
    ----------
    parts : Var
        Registers, float32.
    at : Expr or int
        First of the ``FRAGMENT`` registers.
    cells : sequence of Expr
        In the order of the instruction.
    """
    return tirx.Evaluate(
        T.cuda.func_call(
            "scan_split_tf32",
            parts.access_ptr("w", offset=at, extent=FRAGMENT),
            *cells,
            source_code=_SPLIT,
            return_type="void",
        )
    )


def multiply(sums: Var, at: Any, parts: Var, of: Any, cells: Sequence[Any]) -> Any:
    """Statement that adds the product of a fragment of A and one of B to sums.

    Parameters
    ----------
    sums, parts : Var
        Registers, float32; a sum is that of registers ``r`` and ``r + 4``.
    at, of : Expr or int
        First of the ``FRAGMENT`` registers of the sums, and of A's.
    cells : sequence of Expr
        The lane's two cells of B.
    """
    return tirx.Evaluate(
        T.cuda.func_call(
            "scan_multiply_tf32",
            sums.access_ptr("rw", offset=at, extent=FRAGMENT),
            parts.access_ptr("r", offset=of, extent=FRAGMENT),
            *cells,
            source_code=_MULTIPLY,
            return_type="void",
        )
    )
