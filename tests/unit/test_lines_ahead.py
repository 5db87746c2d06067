"""Lines that a walk of a delta rule asks for: all that a later step touches, and none beside."""

import pytest
from tvm import tirx
from tvm.ir import Call

from tvm_scan import loops, tir
from tvm_scan.loops.delta_walk import AHEAD
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
