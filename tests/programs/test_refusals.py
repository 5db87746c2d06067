"""What is no supported recurrence is refused, by name, with the expression underlined."""

import pytest
from tvm.target import Target

from tests.programs.refused_programs import REFUSED
from tvm_scan import Refusal, RefusalKind, ScanError, ScanPlan, extract, parallelize
from tvm_scan.errors import RefusalError


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_the_right_reason(name):
    func, kind, text, _ = REFUSED[name]
    found = extract(func)
    assert isinstance(found, Refusal)
    if kind is not None:
        assert found.kind is kind, str(found)
    with pytest.raises(RefusalError, match=text) as raised:
        # A plan: a delta rule is no scan, but without one it runs in chunks of another kind.
        parallelize(func, Target.from_device("cpu"), ScanPlan("cpu", "lanes"))
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
