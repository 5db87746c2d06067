"""What is no supported recurrence is refused, by name, with the expression underlined."""

import re

import pytest
from tvm.target import Target

from tests.programs.refused_programs import REFUSED
from tvm_scan import Refusal, RefusalKind, ScanError, ScanPlan, extract, parallelize
from tvm_scan.delta_rule import DeltaRule
from tvm_scan.errors import PlanError, RefusalError
from tvm_scan.extraction import extract_nest, root_nests
from tvm_scan.schedules import analysis
from tvm_scan.schedules.analysis import analyse


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_the_right_reason(name):
    func, kind, text, _ = REFUSED[name]
    found = extract(func)
    assert isinstance(found, Refusal)
    if kind is not None:
        assert found.kind is kind, str(found)
    cpu, lanes = Target.from_device("cpu"), ScanPlan.of("cpu", "lanes")
    if analyse(func).deltas:  # no scan, but it has plans of its own
        assert re.search(text, found.message()) and "\nfix: " in found.message()
        with pytest.raises(PlanError, match="a plan for a delta rule, got one for a recurrence"):
            parallelize(func, cpu, lanes)
        return
    with pytest.raises(RefusalError, match=text) as raised:
        parallelize(func, cpu, lanes)
    assert raised.value.refusal.kind is found.kind
    assert "\nfix: " in str(raised.value)
    assert isinstance(raised.value, ScanError)


def test_message_underlines_the_expression():
    for name, (func, _, _, wanted) in REFUSED.items():
        if wanted is None:
            continue
        lines = extract(func).message().splitlines()
        marks = [i for i, line in enumerate(lines) if line.strip() and set(line.strip()) == {"^"}]
        assert marks, f"{name}: nothing is underlined in\n" + "\n".join(lines)
        above, carets = lines[marks[0] - 1], lines[marks[0]]
        start, end = carets.index("^"), carets.rindex("^") + 1
        assert wanted in above[start:end], f"{name}: underlined {above[start:end]!r}"


def test_every_kind_has_a_program():
    shown = {kind for _, kind, _, _ in REFUSED.values()} - {None}
    assert shown == set(RefusalKind)


def test_a_refusal_is_short_text_and_long_text():
    found = extract(REFUSED["sine"][0])
    assert str(found).startswith("unsupported-step: expected a step of S")
    assert found.message().startswith("parallel_scan: expected a step of S")


def test_parallel_scan_refuses_before_it_touches_the_schedule():
    import tvm
    from tvm import s_tir

    from tvm_scan import parallel_scan

    sch = s_tir.Schedule(tvm.IRModule({"main": REFUSED["reduction"][0]}), debug_mask="all")
    before = sch.mod
    with pytest.raises(ScanError, match="found the reduction over k"):
        parallel_scan(sch, sch.get_sblock("sum"))
    tvm.ir.assert_structural_equal(sch.mod, before)
    assert not any(str(inst.kind.name) == "Annotate" for inst in sch.trace.insts)


#: The rewrite that is known to work, where there is one.
FIXES = {
    "sine": "no rewrite is known",
    "unsigned_subtraction": "carry a signed integer",
    "unsigned_floor": "T.Cast('int64', h)",
    "bound_on_both_sides": "T.max(a*h + b, x)",
    "branch_on_the_carry": "write a bound as T.max or T.min",
}


@pytest.mark.parametrize("name", FIXES)
def test_the_fix_is_of_the_step(name):
    assert FIXES[name] in extract(REFUSED[name][0]).fix


def test_names_and_numbers_are_the_authors():
    from tvm.script import tirx as T

    @T.prim_func(s_tir=True)
    def loop(R: T.Buffer((3, 9), "float32"), I: T.Buffer((3, 10), "float32")):
        for b, t in T.grid(3, 9):
            I[b, t + 1] = T.sin(I[b, t] * T.float32(0.99)) + R[b, t]

    text = extract(loop).message()
    assert "T.sin(I[b, t] * T.float32(0.99))" in text.splitlines()[0]
    assert "_1" not in text
    assert "0.98999" not in text

    @T.prim_func(s_tir=True)
    def taken(R: T.Buffer((3, 9), "float64"), I: T.Buffer((3, 10), "float64")):
        for b, t in T.grid(3, 9):
            I[b, t + 1] = I[b, t] * T.float64(0.99) + R[b, t]

    shown = " ".join(extract(taken).algebras[0].formulas().values())
    assert "T.float64(0.99)" in shown
    assert "R[b, t]" in shown


def test_each_nest_is_taken_apart_once(monkeypatch):
    """Also where it is refused; what is said is what ``extract`` says."""
    taken = []

    def counting(func, nest):
        taken.append(nest)
        return extract_nest(func, nest)

    monkeypatch.setattr(analysis, "extract_nest", counting)
    for name, (func, *_) in REFUSED.items():
        taken.clear()
        found = analysis.first_loop(func)
        assert len(taken) == len(root_nests(func)), name
        assert isinstance(found, DeltaRule) == bool(analyse(func).deltas), name
        if isinstance(found, Refusal):
            said = extract(func)
            assert (found.kind, found.detail, found.fix) == (said.kind, said.detail, said.fix)
            assert found.message() == said.message(), name
