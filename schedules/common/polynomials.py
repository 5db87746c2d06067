"""Elementary functions in float32 of operations that exist on vectors.

Source of the method: range reduction after W. J. Cody and W. Waite, "Software Manual for the
Elementary Functions", 1980, with ``ln 2`` in two parts, and for the logarithm the series of
``atanh``. Errors in ulp against float64 are held by ``tests/unit/test_vector_math.py``.
"""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.ir import Var

from tvm_scan import tir
from tvm_scan.schedules.common.ir import local

_F32 = "float32"
_LOG2E = 1.4426950408889634
_LN2_HIGH = 0.693359375  # 9 bits: n * _LN2_HIGH is exact for the n that occur
_LN2_LOW = -2.12194440054690583e-4
_ROUND = 12582912.0  # 1.5 * 2^23: a float32 of this size has no fraction
#: Polynomials of degree 6 for e^r on |r| <= ln(2) / 2 and 2^r on |r| <= 1/2, through 7 Chebyshev
#: points; the constant term is set to 1, so that e^0 and whole powers are exact. They are off by
#: 5e-9 at most.
_EXP = (
    1.0,
    1.00000001077157,
    0.5000000013457727,
    0.16666505260408124,
    0.04166646500604008,
    0.008369148490856345,
    0.0013933641031984793,
)
_EXP2 = (
    1.0,
    0.6931471880262288,
    0.24022650760568126,
    0.05550357114219078,
    0.00961808255727786,
    0.0013390863364671202,
    0.00015453162945117818,
)
#: 2 atanh(s) / s in s^2 <= 1/9, the first term set to 2: off by 5e-9 at most.
_ATANH = (2.0, 0.6666641628548362, 0.40021527252564787, 0.28001805013885767, 0.28011988255287396)


def _f(value: float) -> Any:
    return tirx.FloatImm(_F32, value)


def _i(value: int) -> Any:
    return tirx.IntImm("int32", value)


class Pool:
    """Vector registers for intermediate values; each statement starts over with the first.

    Parameters
    ----------
    width : int
        Cells of a vector.
    name : str
        Of the registers, before their number.
    """

    def __init__(self, width: int, name: str = "p") -> None:
        self.width, self.name = width, name
        self._buffers: dict[tuple[int, str], Var] = {}

    @property
    def buffers(self) -> list[Var]:
        """Buffers to allocate, and to touch outside of the vector loop."""
        return list(self._buffers.values())

    def get(self, number: int, dtype: str) -> Var:
        """Register ``number`` of that dtype."""
        if (number, dtype) not in self._buffers:
            self._buffers[number, dtype] = local(f"{self.name}{number}", [self.width], dtype)
        return self._buffers[number, dtype]


class Values:
    """Registers for the intermediate values of one statement, so that they are computed once.

    A polynomial uses its argument many times; written out as one expression, nested functions
    would grow exponentially, and TVM's vectoriser has no variables that hold vectors.

    Parameters
    ----------
    pool : Pool
        Where values live.
    cell : Expr
        Cell of the vector loop.
    ldexp : bool
        Whether the target scales vectors by powers of two in one instruction.
    """

    def __init__(self, pool: Pool, cell: Any, ldexp: bool = False) -> None:
        self.pool, self.cell, self.ldexp = pool, cell, ldexp
        self.stores: list[Any] = []

    def __call__(self, value: Any) -> Any:
        """Keep ``value`` and return where it is."""
        buffer = self.pool.get(len(self.stores), tir.dtype_of(value))
        self.stores.append(tirx.BufferStore(buffer, value, [self.cell]))
        return tirx.BufferLoad(buffer, [self.cell])


def exp(x: Any, let: Values) -> Any:
    """``e^x`` in float32, at most 2 ulp; exact at infinities, NaN and 0.

    Parameters
    ----------
    x : Expr
        float32.
    let : Values
        Collects the intermediate values.
    """
    x = _between(let(x), -105.0, 89.0, let)
    n, bits = _nearest(x * _f(_LOG2E), let)
    r = let(x - n * _f(_LN2_HIGH) - n * _f(_LN2_LOW))
    return _scaled(_horner(_EXP, r), bits, let)


def exp2(x: Any, let: Values) -> Any:
    """``2^x`` in float32, at most 2 ulp; exact at infinities, NaN and whole numbers.

    Parameters are those of `exp`.
    """
    x = _between(let(x), -151.0, 128.5, let)
    n, bits = _nearest(x, let)
    return _scaled(_horner(_EXP2, let(x - n)), bits, let)


def exp2_in_range(x: Any, let: Values) -> Any:
    """``2^x`` in float32 by fewer instructions: at most 2 ulp for results of 2^-125 and more.

    Smaller ones are zero, or as accurate. Infinities, NaN and whole numbers are exact. Parameters
    are those of `exp`.
    """
    x = _between(let(x), -126.0, 128.0, let)
    n, bits = _nearest(x, let)
    twice = let(_horner(tuple(2 * c for c in _EXP2), let(x - n)))
    # 2^(n - 1), which is 0 where n is -126; of 2^n, that of 128 would be infinite.
    scale = tirx.shift_left(bits, _i(23)) + _i(126 << 23)
    return twice * tirx.reinterpret(_F32, scale)


def _between(x: Any, low: float, high: float, let: Values) -> Any:
    """``x`` in an interval; comparisons are false on NaN, which therefore passes.

    With ldexp there is no upper end: a number that has no int32 is converted to the least one, the
    polynomial of what is left is infinite, and so is the result.
    """
    below = x if let.ldexp else let(tirx.Select(x > _f(high), _f(high), x))
    return let(tirx.Select(below < _f(low), _f(low), below))


def _nearest(x: Any, let: Values) -> tuple[Any, Any]:
    """The whole number next to ``x`` in [-2^21, 2^21], and bits that end in it, or it with ldexp.

    Adding 1.5 2^23 leaves no bits for a fraction. The sum is kept as an integer, because TVM's
    simplifier takes ``(x + c) - c`` for ``x``.
    """
    if let.ldexp:
        # One instruction; its conversion back serves the scaling by powers of two, too.
        n = let(tirx.call_llvm_pure_intrin("int32", "llvm.lrint", x))
        return tirx.Cast(_F32, n), n
    bits = let(tirx.reinterpret("int32", x + _f(_ROUND)))
    return let(tirx.reinterpret(_F32, bits) - _f(_ROUND)), bits


def _scaled(value: Any, bits: Any, let: Values) -> Any:
    """``value 2^n``, with the ``bits`` of ``n``: two factors, so that one product rounds.

    A shift by 23 leaves of the bits nothing but ``n`` where an exponent stands.
    """
    if let.ldexp:
        return tirx.call_llvm_pure_intrin(_F32, "llvm.ldexp", value, bits)
    half = let(tirx.shift_left(tirx.shift_right(bits, _i(1)), _i(23)))
    rest = tirx.shift_left(bits, _i(23)) - half
    one = _i(127 << 23)
    value = value * tirx.reinterpret(_F32, half + one)
    return value * tirx.reinterpret(_F32, rest + one)


def _horner(coefficients: tuple[float, ...], r: Any) -> Any:
    value = _f(coefficients[-1])
    for c in reversed(coefficients[:-1]):
        value = value * r + _f(c)
    return value


def log(x: Any, let: Values) -> Any:
    """Natural logarithm in float32, at most 2 ulp on normal numbers.

    Parameters
    ----------
    x : Expr
        float32; negative numbers give NaN, zero gives minus infinity.
    let : Values
        Collects the intermediate values.
    """
    x = let(x)
    # A denormal is scaled up first; its exponent is corrected below.
    small = x < _f(1.17549435e-38)
    scaled = tirx.Select(small, x * _f(8388608.0), x)
    bits = let(tirx.reinterpret("int32", scaled))
    # Mantissa in [sqrt(1/2), sqrt(2)), so that no digits cancel near one.
    shifted = bits - _i(0x3F3504F3)
    n = let(tirx.shift_right(shifted, _i(23)))
    mantissa = tirx.reinterpret(_F32, bits - tirx.shift_left(n, _i(23)))
    exponent = tirx.Cast(_F32, n) - tirx.Select(small, _f(23.0), _f(0.0))
    exponent = let(exponent)
    f = let(mantissa - _f(1.0))
    s = let(f / (f + _f(2.0)))
    z = let(s * s)
    series = _f(2.0 / 11)
    for k in (9, 7, 5, 3):
        series = series * z + _f(2.0 / k)
    # log(1 + f) = f - f^2/2 + s (f^2/2 + z series): the large part f is added last.
    square = let(f * f * _f(0.5))
    value = s * (square + z * series)
    value = f - (square - (value + exponent * _f(_LN2_LOW))) + exponent * _f(_LN2_HIGH)
    value = tirx.Select(tirx.EQ(x, _f(float("inf"))), x, value)
    value = tirx.Select(tirx.EQ(x, _f(0.0)), _f(float("-inf")), value)
    return tirx.Select(tirx.Or(x < _f(0.0), tirx.isnan(x)), _f(float("nan")), value)


def log1p(x: Any, let: Values) -> Any:
    """``log(1 + x)`` in float32, at most 4 ulp, also for small ``x``.

    Parameters are those of `exp`.

    Notes
    -----
    After W. Kahan: with ``u = 1 + x`` rounded, ``log(u) + (x - (u - 1)) / u``, whose second term
    is what the rounding lost. The difference is hidden from TVM's simplifier, which would take
    ``(1 + x) - 1`` for ``x``.
    """
    x = let(x)
    bits = let(tirx.reinterpret("int32", x + _f(1.0)))
    u = let(tirx.reinterpret(_F32, bits))
    lost = x - (u - _f(1.0))
    value = log(u, let) + lost / u
    infinite = tirx.EQ(x, _f(float("inf")))
    return tirx.Select(infinite, x, tirx.Select(tirx.EQ(u, _f(0.0)), _f(float("-inf")), value))


def log1p_unit(x: Any, let: Values) -> Any:
    """``log(1 + x)`` in float32 for ``x`` in [0, 1], at most 3 ulp: ``2 atanh(x / (2 + x))``.

    Parameters
    ----------
    x : Expr
        float32 in [0, 1], or NaN.
    let : Values
        Collects the intermediate values.
    """
    x = let(x)
    s = let(x / (x + _f(2.0)))
    z = let(s * s)
    return s * _horner(_ATANH, z)


def sigmoid(x: Any, let: Values) -> Any:
    """``1 / (1 + e^-x)`` in float32, at most 4 ulp on normal results."""
    return _f(1.0) / (_f(1.0) + exp(_f(0.0) - x, let))


def tanh(x: Any, let: Values) -> Any:
    """Hyperbolic tangent in float32, at most 4 ulp."""
    x = let(x)
    # Small arguments by a polynomial (S. Moshier, Cephes), where 1 - 2 / (e^2x + 1) cancels.
    z = let(x * x)
    poly = _f(-5.70498872745e-3)
    for c in (2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1):
        poly = poly * z + _f(c)
    large = _f(1.0) - _f(2.0) / (exp(x * _f(2.0), let) + _f(1.0))
    return tirx.Select(z < _f(0.390625), x + x * z * poly, large)
