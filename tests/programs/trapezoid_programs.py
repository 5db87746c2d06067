"""The trapezoid of Mamba-3, whose drive reads the step before, in the forms in which it is written.

Each is a name, the source of a program, and the reason of the refusal, or None.
"""

__all__ = ["DELTAS", "SELECTIVE"]

B, C, L, N = 2, 3, 37, 4
GATE = "T.exp(D[b, c, t] * A[c, n])"


def _selective(update, padding=0, first="", after="", top=""):
    length = L + padding
    return _source(
        f"""
    D: T.Buffer({(B, C, L)}, "float32"),
    X: T.Buffer({(B, C, length)}, "float32"),
    A: T.Buffer({(C, N)}, "float32"),
    Bs: T.Buffer({(B, length, N)}, "float32"),
    Cs: T.Buffer({(B, L, N)}, "float32"),
    W: T.Buffer({(B, C, L)}, "float32"),
    B0: T.Buffer({(B, N)}, "float32"),
    X0: T.Buffer({(B, C)}, "float32"),
    S: T.Buffer({(B, C, N)}, "float32"),
    Y: T.Buffer({(B, C, L)}, "float32"),""",
        top,
        f"for b, c in T.grid({B}, {C}):",
        first,
        f"""Y[b, c, t] = T.float32(0)
for n in range({N}):
{_moved(update, 1)}
    Y[b, c, t] = Y[b, c, t] + S[b, c, n] * Cs[b, t, n]
{after}""",
    )


def _moved(text, depth):
    return "\n".join(f"{'    ' * depth}{line}" for line in text.splitlines())


def _source(parameters, top, lanes, first, step):
    parts = [_moved(top, 1), f"    {lanes}", _moved(first, 2), f"        for t in range({L}):"]
    body = "\n".join(part for part in [*parts, _moved(step, 3)] if part.strip())
    head = "from tvm.script import tirx as T\n\n@T.prim_func(s_tir=True)\n"
    return f"{head}def program({parameters}\n):\n{body}\n"


def _drive(b, x):
    return f"(T.float32(1) - W[b, c, t]) * D[b, c, t] * {GATE} * {b} * {x}"


_NOW = f"S[b, c, n] = {GATE} * S[b, c, n] + W[b, c, t] * D[b, c, t] * Bs[b, t, n] * X[b, c, t]"
_PADDED = _NOW.replace("Bs[b, t, n]", "Bs[b, t + 1, n]").replace("X[b, c, t]", "X[b, c, t + 1]")
_BEFORE = _drive("Bs[b, t - 1, n]", "X[b, c, t - 1]")
_LAST = _drive("Bs[b, T.max(t - 1, 0), n]", "X[b, c, T.max(t - 1, 0)]")
_OF_X = "T.if_then_else(t > 0, X[b, c, t - 1], X0[b, c])"
_OF_B = "T.if_then_else(t > 0, Bs[b, t - 1, n], B0[b, n])"
_VECTOR = f'last = T.alloc_buffer(({N},), "float32")'
SELECTIVE = [
    ("a choice", _selective(f"{_NOW} + T.if_then_else(t > 0, {_BEFORE}, T.float32(0))"), None),
    ("values before time", _selective(f"{_NOW} + {_drive(_OF_B, _OF_X)}"), None),
    ("times a test", _selective(f'{_NOW} + T.Cast("float32", t > 0) * {_LAST}'), None),
    ("padded", _selective(f"{_PADDED} + {_drive('Bs[b, t, n]', 'X[b, c, t]')}", 1), None),
    (
        "a condition",
        _selective(f"{_NOW}\nif t > 0:\n    S[b, c, n] = S[b, c, n] + {_BEFORE}"),
        None,
    ),
    (
        "a product kept",
        _selective(
            f"{_NOW} + {_drive('last[n]', 'T.float32(1)')}\nlast[n] = Bs[b, t, n] * X[b, c, t]",
            first=f"for n in range({N}):\n    last[n] = B0[b, n] * X0[b, c]",
            top=_VECTOR,
        ),
        None,
    ),
    (
        "a vector and a number kept",
        _selective(
            f"{_NOW} + {_drive('last[n]', 'number[0]')}\nlast[n] = Bs[b, t, n]",
            first=f"number[0] = X0[b, c]\nfor n in range({N}):\n    last[n] = B0[b, n]",
            after="number[0] = X[b, c, t]",
            top=f'{_VECTOR}\nnumber = T.alloc_buffer((1,), "float32")',
        ),
        None,
    ),
]

H, K, V = 2, 12, 20
_CELLS = f"for i, v in T.grid({K}, {V}):\n    "


def _delta(update, padding=0, first="", after="", top=""):
    length, t = L + padding, "t + 1" if padding else "t"
    return _source(
        f"""
    Q: T.Buffer({(H, L, K)}, "float32"),
    Ks: T.Buffer({(H, length, K)}, "float32"),
    Vs: T.Buffer({(H, length, V)}, "float32"),
    B: T.Buffer({(H, L)}, "float32"),
    G: T.Buffer({(H, L)}, "float32"),
    K0: T.Buffer({(H, K)}, "float32"),
    V0: T.Buffer({(H, V)}, "float32"),
    S: T.Buffer({(H, K, V)}, "float32"),
    Y: T.Buffer({(H, L, V)}, "float32"),""",
        f'known = T.alloc_buffer(({V},), "float32")\n{top}',
        f"for h in range({H}):",
        first,
        f"""for v in range({V}):
    known[v] = T.float32(0)
{_CELLS}known[v] += Ks[h, {t}, i] * S[h, i, v]
{update}
for v in range({V}):
    Y[h, t, v] = T.float32(0)
{_CELLS}Y[h, t, v] += Q[h, t, i] * S[h, i, v]
{after}""",
    )


def _step(t="t"):
    error = f"B[h, t] * (Vs[h, {t}, v] - known[v])"
    return f"{_CELLS}S[h, i, v] = T.exp(G[h, t]) * S[h, i, v] + Ks[h, {t}, i] * {error}"


_PRODUCT = "T.float32(0.1) * Ks[h, t - 1, i] * Vs[h, t - 1, v]"
_CHOSEN = f"T.if_then_else(t > 0, {_PRODUCT}, T.float32(0))"
_EITHER = (
    "T.float32(0.1) * T.if_then_else(t > 0, Ks[h, t - 1, i], K0[h, i]) "
    "* T.if_then_else(t > 0, Vs[h, t - 1, v], V0[h, v])"
)
_CLAMPED = _PRODUCT.replace("t - 1", "T.max(t - 1, 0)")
_ADDED = f"{_CELLS}S[h, i, v] = S[h, i, v] + "
_UNDER = _moved(f"{_ADDED}{_PRODUCT}", 1)
DELTAS = [
    ("a choice", _delta(f"{_step()} + {_CHOSEN}"), None),
    ("values before time", _delta(f"{_step()} + {_EITHER}"), None),
    ("times a test", _delta(f'{_step()} + T.Cast("float32", t > 0) * {_CLAMPED}'), None),
    ("padded", _delta(f"{_step('t + 1')} + {_PRODUCT.replace('t - 1', 't')}", 1), None),
    ("a loop of its own", _delta(f"{_step()}\n{_ADDED}{_CHOSEN}"), None),
    ("a condition", _delta(f"{_step()}\nif t > 0:\n{_UNDER}"), None),
    (
        "vectors kept",
        _delta(
            f"{_step()} + T.float32(0.1) * key[i] * value[v]",
            first=f"for i in range({K}):\n    key[i] = K0[h, i]\n"
            f"for v in range({V}):\n    value[v] = V0[h, v]",
            after=f"for i in range({K}):\n    key[i] = Ks[h, t, i]\n"
            f"for v in range({V}):\n    value[v] = Vs[h, t, v]",
            top=f'key = T.alloc_buffer(({K},), "float32")\n'
            f'value = T.alloc_buffer(({V},), "float32")',
        ),
        "both carried",
    ),
]
