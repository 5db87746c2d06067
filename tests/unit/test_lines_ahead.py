"""Lines that a walk of a delta rule asks for: all that a later step touches, and none beside."""

import itertools

import pytest
from tvm import tirx
from tvm.ir import Call

from tvm_scan import loops, tir
from tvm_scan.loops.delta_lines import AHEAD
from tvm_scan.loops.delta_walk import Walk
from tvm_scan.loops.writer import Loop
from tvm_scan.schedules.analysis import analyse
from tvm_scan.schedules.delta.lines_ahead import LinesAhead
from tvm_scan.schedules.delta.memory_map import assign_task

LENGTH, HEADS, HEAD = 11, 2, 3
#: Cells of a line.
LINE = 16


def number(value):
    return tirx.IntImm("int64", value)


def rule_of(keys, values):
    sizes = [number(n) for n in (1, HEADS, LENGTH)]
    options = {"keys": keys, "values": values, "group": 2, "rule": "delta", "gate": "head"}
    (rule,) = analyse(loops.delta_rule(*sizes, dtype="float32", **options)).accepted
    return rule


def asked(rule, columns, time, parts):
    """Return the cells that the last task of a head asks for, beside whether it will write them."""
    blocks = int(rule.columns.extent) // columns
    task, _, memory = assign_task(rule, blocks, columns)
    table = tir.VarMap([(task, number((HEAD + 1) * blocks - 1))])
    ahead, found = LinesAhead(rule, memory, columns), []
    for part in range(parts):
        stmt = tir.substitute(ahead.ask(number(time), number(part), parts), table)
        for call in tir.nodes(stmt, Call):
            if tir.call_name(call) == "tirx.prefetch":
                (load,) = tir.loads(call)
                index = tuple(int(tir.simplify(i)) for i in load.indices)
                shape = [int(n) for n in tir.shape_of(load.source)]
                assert all(0 <= i < n for i, n in zip(index, shape, strict=True))
                found.append((load.source.name, index, bool(int(call.args[1]))))
    return found


@pytest.mark.parametrize("parts", [1, 2, 3])
@pytest.mark.parametrize(("keys", "values", "columns"), [(128, 128, 64), (5, 7, 7), (40, 64, 32)])
@pytest.mark.parametrize("time", [0, LENGTH - AHEAD, LENGTH - 1])
def test_all_lines_of_a_later_step(keys, values, columns, parts, time):
    found = asked(rule_of(keys, values), columns, time, parts)
    later, first = min(time + AHEAD, LENGTH - 1), values - columns

    def lines(start, cells):
        return {cell - (cell - start) % LINE for cell in range(start, start + cells)}

    wanted = {("w", ()), ("beta", ())}
    wanted |= {(name, (line,)) for name in "qk" for line in lines(0, keys)}
    wanted |= {(name, (line,)) for name in "vy" for line in lines(first, columns)}
    #: A share may reach beyond the last line, which it asks for again, at its last cell.
    ends = {"q": (0, keys), "k": (0, keys), "v": (first, columns), "y": (first, columns)}
    got = set()
    for name, (batch, step, head, *cell), written in found:
        shared = name in "qk"
        assert (batch, step, head) == (0, later, HEAD // 2 if shared else HEAD)
        assert written == (name == "y")
        start, _ = ends.get(name, (0, 1))
        got.add((name, tuple(c - (c - start) % LINE for c in cell)))
    assert got == wanted
    assert not {"first", "last"} & {name for name, *_ in found}


def asked_by_walk(columns, count, parts, *, first, back, **sizes):
    """Return the cells that shares of some steps ask for in torch's loops, in the last task."""
    with Loop() as loop:
        extents = [number(n) for n in (1, HEADS, LENGTH)]
        options = {"group": 2, "rule": "delta", "gate": "head", "dtype": "float32"}
        walk = Walk(loop, *extents, False, columns=columns, **sizes, **options)
        with loop.parallel(number(1), "task"):
            walk.at(number(0), number(HEAD), number(sizes["values"] // columns - 1))
            with loop.over(parts, "part") as part:
                walk.ask(number(first), count, walk.read_rows, back=back, share=(part, parts))
    cells = []
    (part,) = (x for x in tir.nodes(loop.func.body, tirx.For) if x.loop_var.name == "part")
    for line in tir.nodes(part, tirx.For):
        if line.loop_var.name != "line":
            continue
        (call,) = (x for x in tir.nodes(line.body, Call) if tir.call_name(x) == "tirx.prefetch")
        (load,) = tir.loads(call)
        for p, n in itertools.product(range(parts), range(int(line.extent))):
            table = tir.VarMap([(part.loop_var, number(p)), (line.loop_var, number(n))])
            index = [int(tir.simplify(tir.substitute(i, table))) for i in load.indices]
            cells.append((load.source.name, *index))
    return cells


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("parts", [1, 2, 3, 8, 32, 64])
@pytest.mark.parametrize(
    ("keys", "values", "columns"), [(128, 128, 64), (16, 48, 16), (40, 64, 32)]
)
def test_shares_of_steps_have_all_lines(keys, values, columns, parts, count, back):
    """More shares than lines, or than steps: each line at least once, none of another head's."""
    first = 9 if back else 0
    cells = asked_by_walk(columns, count, parts, first=first, back=back, keys=keys, values=values)
    steps = [first + t - AHEAD if back else first + t + AHEAD for t in range(count)]
    steps = {min(max(step, 0), LENGTH - 1) for step in steps}
    spans = {"q": (0, keys), "k": (0, keys), "v": (values - columns, columns)}
    got = set()
    for name, _, step, head, cell in cells:
        start, extent = spans[name]
        assert start <= cell < start + extent
        assert head == (HEAD if name == "v" else HEAD // 2)
        got.add((name, step, (cell - start) // LINE))
    assert got == {
        (name, step, line)
        for name, (_, extent) in spans.items()
        for step in steps
        for line in range(-(-extent // LINE))
    }
