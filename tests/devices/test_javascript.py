"""Loops and sizes in JavaScript, run by node: a page's own results, where there is no WebGPU."""

import re
from importlib.resources import files

import numpy as np
import pytest
from tvm import tirx
from tvm.script import tirx as T

from tests.devices.table import ALGEBRAS, loop_of, problem
from tests.support.node import run_module, text_of
from tvm_scan import library, tir
from tvm_scan.browser.loops import loop_of as loop_in_javascript
from tvm_scan.browser.loops import module_of
from tvm_scan.errors import ScanError
from tvm_scan.schedules.launch.numbers import evaluate, number_of

FILES = files("tvm_scan.browser").joinpath("files")
LENGTHS = (0, 1, 2, 33)
#: Algebras over numbers that a page's arrays do not hold.
REFUSED = {"sum": "int64", "affine of halves": "bfloat16"}


def test_loops_of_every_family_compute_what_they_say(tmp_path):
    loops, calls, wanted = [], [], []
    for algebra in ALGEBRAS:
        func = loop_of(algebra)
        if algebra in REFUSED:
            with pytest.raises(
                ScanError, match=f"dtypes that its arrays have, got {REFUSED[algebra]}"
            ):
                loop_in_javascript(func, algebra)
            continue
        loop = loop_in_javascript(func, algebra)
        loops.append(loop)
        for length in LENGTHS:
            inputs, want, tolerance = problem(algebra, length)
            arrays = [*inputs, *(np.full_like(a, 77) for a in want)]
            sizes = {}
            for parameter, array in zip(loop.parameters, arrays, strict=True):
                named = zip(parameter.shape, array.shape, strict=True)
                sizes |= {extent: size for extent, size in named if isinstance(extent, str)}
            calls.append([algebra, [array.ravel().tolist() for array in arrays], sizes])
            wanted.append((algebra, length, want, tolerance))
    (tmp_path / "loops.js").write_text(module_of(loops))
    script = f"""
    import {{ loops }} from "./loops.js";
    const results = {text_of(calls)}.map(([name, arrays, sizes]) => {{
      const given = arrays.map((cells) => Float64Array.from(cells));
      loops[name](Float64Array, given, sizes);
      return given;
    }});"""
    results = run_module(tmp_path, script)
    assert len(results) == len(wanted) >= 4 * len(LENGTHS)
    for got, (algebra, length, want, tolerance) in zip(results, wanted, strict=True):
        for array, expected in zip(got[-len(want) :], want, strict=True):
            cells = np.array([float(v) for v in array]).reshape(expected.shape)
            np.testing.assert_allclose(
                cells, expected, rtol=tolerance, atol=tolerance, err_msg=f"{algebra} {length}"
            )


@T.prim_func(s_tir=True)
def whole_numbers(
    X: T.Buffer((9,), "int32"),
    U: T.Buffer((9,), "uint32"),
    H: T.Buffer((9,), "int32"),
    V: T.Buffer((9,), "uint32"),
    Q: T.Buffer((9,), "int32"),
    S: T.Buffer((9,), "int8"),
):
    for t in range(9):
        H[t] = T.if_then_else(t > 0, H[t - 1], T.int32(1)) * T.int32(1664525) + X[t]
        V[t] = (T.if_then_else(t > 0, V[t - 1], T.uint32(1)) ^ U[t]) * T.uint32(2654435761)
        Q[t] = (
            T.floordiv(X[t], T.int32(7)) * 100
            + T.floormod(X[t], 7)
            + T.truncmod(X[t], 5)
            + (X[t] >> 3)
        )
        S[t] = T.Cast("int8", X[t]) + T.int8(100)


def test_whole_numbers_wrap_as_in_the_loop(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.integers(-(2**31), 2**31, 9).astype("int32")
    u = rng.integers(0, 2**32, 9).astype("uint32")
    h, v, hs, vs = np.int64(1), np.uint64(1), [], []
    for t in range(9):
        h = np.int64(np.int32((int(h) * 1664525 + int(x[t]) + 2**31) % 2**32 - 2**31))
        v = np.uint64((int(v) ^ int(u[t])) * 2654435761 % 2**32)
        hs.append(int(h))
        vs.append(int(v))
    wide = x.astype("int64")
    q = wide // 7 * 100 + wide % 7 + np.fmod(wide, 5) + (wide >> 3)
    q = (q + 2**31) % 2**32 - 2**31
    s = (x.astype("int8").astype("int64") + 100 + 128) % 256 - 128
    (tmp_path / "loops.js").write_text(module_of([loop_in_javascript(whole_numbers, "whole")]))
    got = run_module(
        tmp_path,
        f"""
        import {{ loops }} from "./loops.js";
        const results = [Int32Array.from({x.tolist()}), Uint32Array.from({u.tolist()}),
          new Int32Array(9), new Uint32Array(9), new Int32Array(9), new Int8Array(9)];
        loops.whole(Float64Array, results, {{}});""",
    )
    assert got[2:] == [hs, vs, q.tolist(), s.tolist()]


def test_sizes_mean_the_same_in_python_and_in_javascript(tmp_path):
    a, b = (tirx.Var(name, "int64") for name in "ab")
    names = tir.VarMap([(a, "a"), (b, "b")])
    exprs = [
        tirx.floordiv(a, b), tirx.floormod(a, b), tirx.truncdiv(a, b), tirx.truncmod(a, b),
        tirx.Max(a + b * 3, tirx.Min(a - b, b)), tirx.Select(tirx.And(a > b, b >= -2), a, b),
        tirx.Cast("int32", tirx.Not(a < b)), tirx.Cast("int32", tirx.Or(a <= b, tirx.EQ(a, b))),
        tirx.shift_right(a, 2), tirx.shift_left(a, 3), tirx.if_then_else(tirx.NE(a, b), a, 7),
    ]  # fmt: skip
    numbers = [number_of(expr, names) for expr in exprs]
    cases = [{"a": x, "b": y} for x in (-7, -1, 0, 5, 2**40 + 3) for y in (-3, 2, 7)]
    (tmp_path / "scan.js").write_text(FILES.joinpath("scan.js").read_text())
    got = run_module(
        tmp_path,
        f"""
        import {{ evaluate }} from "./scan.js";
        const results = {text_of(cases)}.map((names) =>
          {text_of(numbers)}.map((number) => evaluate(number, names)));""",
    )
    want = [[evaluate(number, names) for number in numbers] for names in cases]
    assert [[int(v) for v in row] for row in got] == want
    for values, row in zip(cases, want, strict=True):
        known = tir.VarMap((v, tirx.IntImm("int64", values[n])) for v, n in names.items())
        exact = [int(tir.simplify(tir.substitute(expr, known)).value) for expr in exprs]
        assert [int(value) for value in row] == exact, values


def test_what_javascript_lacks_is_named():
    @T.prim_func(s_tir=True)
    def errors(X: T.Buffer((9,), "float32"), H: T.Buffer((9,), "float32")):
        for t in range(9):
            H[t] = T.if_then_else(t > 0, H[t - 1], T.float32(0)) + T.erf(X[t])

    with pytest.raises(ScanError, match=r"operations that JavaScript has, got T.erf\(X\[t\]\); wr"):
        loop_in_javascript(errors, "errors")
    with pytest.raises(ScanError, match="dtypes that its arrays have, got bfloat16 for"):
        loop_in_javascript(library.selective_scan(1, 2, 9, 2, "bfloat16"), "halves")


def test_what_is_no_number_is_seen(tmp_path):
    """A page's check: a NaN of the kernels is wrong wherever it stands."""
    (tmp_path / "scan.js").write_text(FILES.joinpath("scan.js").read_text())
    results = {
        "[1, 2, 3]": True,
        "[1, 2, 3.0000002]": True,
        "[1, 2, 3.1]": False,
        "[NaN, 2, 3]": False,
        "[1, NaN, 3]": False,
        "[1, 2, NaN]": False,
        "[1, Infinity, 3]": False,
    }
    said = run_module(
        tmp_path,
        f"""
        import {{ Scan }} from "./scan.js";
        const Y = {{ name: "Y", dtype: "float32", shape: [3], written: true, bound: 1e-6 }};
        const scan = new Scan({{ arrays: [Y], time: 3, bound_steps: 3 }}, {{}}, null, {{}});
        const right = (got, want) => scan.compare({{ Y: got }}, {{ Y: want }}, {{}})[0].right;
        const results = [
          ...[{", ".join(results)}].map((got) => right(got, [1, 2, 3])),
          right([NaN, -Infinity, 1], [NaN, -Infinity, 1]),
          right([1, Infinity, 1], [1, -Infinity, 1]),
          right([1, 2, 1], [1, Infinity, 1])];""",
    )
    assert said == [*results.values(), True, False, False]


def test_types_say_what_the_module_has(tmp_path):
    types = FILES.joinpath("scan.d.ts").read_text()
    (tmp_path / "scan.js").write_text(FILES.joinpath("scan.js").read_text())
    exported, scan = run_module(
        tmp_path,
        """
        import * as module from "./scan.js";
        const methods = Object.getOwnPropertyNames(module.Scan.prototype);
        const results = [Object.keys(module), methods];""",
    )
    assert set(exported) == set(re.findall(r"export declare (?:class|function) (\w+)", types))
    body = types[types.index("class Scan") :]
    said = set(re.findall(r"^  (\w+)\(", body[: body.index("\n}")], re.MULTILINE))
    assert said == set(scan) - {"constructor", "shapeOf", "contentOf"}
