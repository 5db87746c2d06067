"""A gated delta net of a serving engine in parts, and what it becomes with one of them changed.

Each variant is taken, and then computes what its own loop does, or refused.
"""

__all__ = ["VARIANTS", "source_of"]

B, L, G, H, K, V = 2, 19, 2, 4, 12, 16

_HEAD = f"""
from tvm.script import tirx as T

@T.prim_func(s_tir=True)
def program(
    Q: T.Buffer(({B}, {L}, {G}, {K}), "float32"),
    Ks: T.Buffer(({B}, {L}, {G}, {K}), "float32"),
    Vs: T.Buffer(({B}, {L}, {H}, {V}), "float32"),
    Gs: T.Buffer(({B}, {L}, {H}), "float32"),
    Bs: T.Buffer(({B}, {L}, {H}), "float32"),
    W: T.Buffer(({B}, {L}, {H}, {V}), "float32"),
    S0: T.Buffer(({B}, {H}, {K}, {V}), "float32"),
    Y: T.Buffer(({B}, {L}, {H}, {V}), "float32"),
    S: T.Buffer(({B}, {H}, {K}, {V}), "float32"),
):
"""
_ATTRS = '    T.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True})'
_LANES = [("b", B, "blockIdx.y"), ("h", H, "blockIdx.x"), ("c", V, "threadIdx.x")]
_S, _Y, _KEY = "S[b, h, r, c]", "Y[b, t, h, c]", "Ks[b, t, h // 2, r]"
FIRST = f"for r in range({K}):\n    {_S} = S0[b, h, r, c]"
DECAY = f"for r in range({K}):\n    {_S} = {_S} * Gs[b, t, h]"
CLEAR = f"{_Y} = T.float32(0)"
KNOWN = f"for r in range({K}):\n    {_Y} = {_Y} + {_S} * {_KEY}"
UPDATE = f"for r in range({K}):\n    {_S} = {_S} + {_KEY} * Bs[b, t, h] * (Vs[b, t, h, c] - {_Y})"
SEEN = f"for r in range({K}):\n    {_Y} = {_Y} + {_S} * Q[b, t, h // 2, r]"
SCALE = f"{_Y} = {_Y} * T.float32(0.25)"
STEP = [DECAY, CLEAR, KNOWN, UPDATE, CLEAR, SEEN, SCALE]


def source_of(step=None, first=(FIRST,), lanes=None, attrs=_ATTRS, top=(), inside=(), last=()):
    """Source of the program with parts of it replaced."""

    def put(parts, depth):
        return [f"{'    ' * depth}{line}" for part in parts for line in part.splitlines()]

    lanes = _LANES if lanes is None else lanes
    lines = [attrs, *put(top, 1)]
    for depth, (name, extent, axis) in enumerate(lanes, 1):
        loop = f'T.thread_binding({extent}, thread="{axis}")' if axis else f"range({extent})"
        lines += put([f"for {name} in {loop}:"], depth)
    depth = len(lanes) + 1
    lines += put([*inside, *first, f"for t in range({L}):"], depth)
    lines += put(STEP if step is None else step, depth + 1)
    return _HEAD + "\n".join([*lines, *put(last, depth)]) + "\n"


def _with(part, old, new):
    assert old in part, old
    return [other.replace(old, new) if other is part else other for other in STEP]


def _without(*positions):
    return [part for n, part in enumerate(STEP) if n not in positions]


_SHORT = [(n, V - 4 if n == "c" else e, a) for n, e, a in _LANES]
_SPLIT = [_LANES[0], _LANES[1], ("co", V // 4, "blockIdx.z"), ("ci", 4, "threadIdx.x")]
_SAME = [*_LANES[:2], ("co", 4, "threadIdx.x"), ("ci", 4, "threadIdx.x")]
_WHERE = [_LANES[0], _LANES[1], ("co", 3, "blockIdx.z"), ("ci", 8, "threadIdx.x")]
_LOCAL = 'state = T.alloc_buffer((%s,), "float32", scope="local")'


def _at(parts, index):
    return [part.replace(", c]", f", {index}]") for part in parts]


def _guarded(parts, cond):
    return [f"if {cond}:\n" + "\n".join(f"    {x}" for x in p.splitlines()) for p in parts]


def _in_registers(parts):
    return [part.replace(_S, "state[r]") for part in parts]


def _of_another_head(*parts):
    return [part.replace(_KEY, "Ks[b, t, 1 - h // 2, r]") for part in parts]


_STORE = f"for r in range({K}):\n    {_S} = state[r]"
_LOAD = FIRST.replace(_S, "state[r]")

_PARTS = 'part = T.alloc_buffer((3, 16), "float32", scope="shared")'
_PART, _ROW = "part[ro, c]", "ro * 4 + ri"
PARTS = f"""for ro in T.thread_binding(3, thread="threadIdx.y"):
    {_PART} = T.float32(0)
    for ri in range(4):
        {_PART} = {_PART} + S[b, h, {_ROW}, c] * Ks[b, t, h // 2, {_ROW}]"""
TOTAL = f"for ro in range(3):\n    {_Y} = {_Y} + {_PART}"


def _in_parts(parts=PARTS, total=TOTAL, before=(), between=()):
    return source_of([DECAY, CLEAR, *before, parts, *between, total, *STEP[3:]], top=[_PARTS])


#: Name, the program, and the reason of the refusal; None where it is taken and its own loop.
VARIANTS = [
    ("as it is", source_of(), None),
    ("the decay after the update", source_of(STEP[1:4] + [DECAY] + STEP[4:]), None),
    ("the decay after the sum", source_of([CLEAR, KNOWN, DECAY, *STEP[3:]]), None),
    ("the decay last", source_of([*STEP[1:], DECAY]), "another sum went into"),
    ("no decay", source_of(STEP[1:]), None),
    ("a second decay", source_of([*STEP[:4], DECAY, *STEP[4:]]), None),
    ("an error over the output", source_of([DECAY, CLEAR, SEEN, UPDATE, SCALE]), None),
    ("two updates", source_of([*STEP[:4], UPDATE, *STEP[4:]]), None),
    ("a sum between two updates", source_of([*STEP[:4], CLEAR, KNOWN, *STEP[3:]]),
     "the first terms'"),
    ("a second update with other keys",
     source_of([*STEP[:4], CLEAR, *_of_another_head(KNOWN, UPDATE), *STEP[4:]]), None),
    ("a second update after a second decay",
     source_of([*STEP[:4], DECAY, CLEAR, *_of_another_head(KNOWN, UPDATE), *STEP[4:]]),
     None),
    ("a second decay after two updates",
     source_of([*STEP[:4], CLEAR, *_of_another_head(KNOWN, UPDATE), DECAY, *STEP[4:]]),
     "the first terms'"),
    ("a second sum over the first update alone",
     source_of([*STEP[:4], CLEAR, *_of_another_head(KNOWN), *_without(0, 1, 2, 4, 5, 6)]),
     "the first terms'"),
    ("no reset of the output", source_of(_without(4)), None),
    ("no reset of the sum", source_of(_without(1)), "both carried"),
    ("a reset in the loop", source_of([*STEP[:5], SEEN + f"\n    {CLEAR}", SCALE]),
     "across iterations"),
    ("no update", source_of(_without(3)), "no sum over the state in its update"),
    ("no first state", source_of(first=()), None),
    ("a part of the first state", source_of(first=[FIRST.replace(str(K), str(K - 1))]),
     "set in part"),
    ("another head's first state", source_of(first=[FIRST.replace("S0[b, h,", "S0[b, 3 - h,")]),
     None),
    ("a first state of other cells", source_of(first=[FIRST.replace("S0[b, h, r, c]",
     "S0[b, h, r, 15 - c]")]), None),
    ("another head's keys", source_of(_with(UPDATE, "h // 2", "h % 2")), None),
    ("another head's keys in the sum", source_of(_with(KNOWN, "h // 2", "1 - h // 2")), None),
    ("another head's gate", source_of(_with(DECAY, "Gs[b, t, h]", "Gs[b, t, 3 - h]")), None),
    ("another step's gate", source_of(_with(DECAY, "Gs[b, t, h]", "Gs[b, 18 - t, h]")), None),
    ("another head's state in the sum", source_of(_with(KNOWN, _S, "S[b, 3 - h, r, c]")), ""),
    ("one state for two heads", source_of([p.replace("S[b, h,", "S[b, h // 2,") for p in STEP]),
     ""),
    ("another column's state in the sum", source_of(_with(KNOWN, _S, "S[b, h, r, 15 - c]")), ""),
    ("another column's error", source_of(_with(UPDATE, _Y, "Y[b, t, h, 15 - c]")), ""),
    ("rows in another order", source_of(_with(KNOWN, _S, f"S[b, h, {K - 1} - r, c]")), ""),
    ("a part of the rows in the sum", source_of(_with(KNOWN, str(K), str(K - 1))), ""),
    ("a part of the rows in the update", source_of(_with(UPDATE, f"({K})", f"({K - 1})")), ""),
    ("one row twice", source_of(_with(UPDATE, f"{_S} =", "S[b, h, T.min(r, 3), c] =")), ""),
    ("the sum of the step before", source_of([DECAY, CLEAR, UPDATE, KNOWN]), ""),
    ("the update before the sum", source_of([DECAY, UPDATE, CLEAR, KNOWN, SCALE]), "both carried"),
    ("outputs backwards", source_of([p.replace("Y[b, t,", "Y[b, 18 - t,") for p in STEP]), None),
    ("outputs in pairs", source_of([p.replace("Y[b, t,", "Y[b, t // 2,") for p in STEP]), ""),
    ("one output for all heads", source_of([p.replace("Y[b, t, h,", "Y[b, t, 0,") for p in STEP]),
     ""),
    ("an earlier output", source_of(_with(UPDATE, _Y, "Y[b, T.max(t - 1, 0), h, c]")), ""),
    ("a first state in the step", source_of(_with(UPDATE, f"= {_S}", "= S0[b, h, r, c]")),
     "no vector times an amount"),
    ("a gate of the column", source_of(_with(DECAY, "Gs[b, t, h]", "W[b, t, h, c]")), None),
    ("a rate of the column", source_of(_with(UPDATE, "Bs[b, t, h]", "W[b, t, h, c]")), None),
    ("a gate of row and column",
     source_of(_with(DECAY, "Gs[b, t, h]", f"T.exp({_KEY} + W[b, t, h, c])")), "not as a factor"),
    ("a factor of the column in the sum", source_of(_with(KNOWN, _KEY, f"{_KEY} * W[b, t, h, c]")),
     None),
    ("keys of the column", source_of(_with(KNOWN, _KEY, f"({_KEY} + W[b, t, h, c])")),
     "not as a factor"),
    ("a square of the sum", source_of(_with(UPDATE, f"- {_Y}", f"- {_Y} * {_Y}")), ""),
    ("a part of the columns", source_of(lanes=_SHORT), None),
    ("split columns", source_of(_at(STEP, "co * 4 + ci"), _at([FIRST], "co * 4 + ci"), _SPLIT),
     None),
    ("columns that meet", source_of(_at(STEP, "co * 3 + ci"), _at([FIRST], "co * 3 + ci"), _SPLIT),
     ""),
    ("columns split in two ways",
     source_of(_at(STEP[:5], "co * 4 + ci") + _at(STEP[5:], "ci * 4 + co"),
               _at([FIRST], "co * 4 + ci"), _SPLIT), ""),
    ("one thread axis twice",
     source_of(_at(STEP, "co * 4 + ci"), _at([FIRST], "co * 4 + ci"), _SAME), "one loop over"),
    ("columns up to a bound",
     source_of(_guarded(_at(STEP, "co * 8 + ci"), "co * 8 + ci < 14"),
               _guarded(_at([FIRST], "co * 8 + ci"), "co * 8 + ci < 14"), _WHERE), None),
    ("columns up to two bounds",
     source_of(_guarded(_at(STEP, "co * 8 + ci"), "co * 8 + ci < 14"),
               _guarded(_at([FIRST], "co * 8 + ci"), "co * 8 + ci < 16"), _WHERE), "condition"),
    ("registers", source_of(_in_registers(STEP), [_LOAD], inside=[_LOCAL % K], last=[_STORE]),
     None),
    ("registers of nobody", source_of(_in_registers(STEP), [_LOAD], top=[_LOCAL % K],
     last=[_STORE]), None),
    ("registers that nothing sets", source_of(_in_registers(STEP), [], top=[_LOCAL % K],
     last=[_STORE]), "before it reads it"),
    ("registers that are stored in part", source_of(_in_registers(STEP), [_LOAD],
     inside=[_LOCAL % K], last=[_STORE.replace(f"({K})", f"({K - 1})")]), ""),
    ("a sum of parts", _in_parts(), None),
    ("a sum of parts of other rows", _in_parts(PARTS.replace(_ROW, "ro + ri * 3")), ""),
    ("a sum of some parts", _in_parts(total=TOTAL.replace("(3)", "(2)")), ""),
    ("a sum of one part", _in_parts(total=TOTAL.replace(_PART, "part[0, c]")), ""),
    ("a sum of another column's parts", _in_parts(total=TOTAL.replace(_PART, "part[ro, 15 - c]")),
     ""),
    ("parts from before the decay", source_of([CLEAR, PARTS, DECAY, TOTAL, *STEP[3:]],
     top=[_PARTS]), ""),
    ("parts that are read twice", _in_parts(before=[PARTS, TOTAL]), ""),
    ("parts of something else", _in_parts(PARTS.replace("T.float32(0)", "T.float32(1)")), ""),
    ("parts that are not set", _in_parts(PARTS.replace(f"{_PART} = T.float32(0)", "pass", 1)
     .replace("    pass\n", "")), ""),
    ("parameters that overlap", source_of(attrs=_ATTRS.replace("True,", "False,")), "overlap"),
]  # fmt: skip
