"""The plans of the shipped records, run on this machine beside the loops that they are for."""

import pytest
import tvm
from tvm.target import Target

from tests import ROOT
from tests.support.compiled import compile_cached
from tvm_scan import parallelize
from tvm_scan.meta import RecordStore
from tvm_scan.meta.measure.check import compare, make_cases
from tvm_scan.schedules.machine.machine import Machine

HOST = Target.from_device("cpu")
FOLDERS = sorted(path for path in (ROOT / "meta" / "records").iterdir() if path.is_dir())
ENTRIES = [(folder.name, entry) for folder in FOLDERS for entry in RecordStore(folder).entries()]


def test_there_are_some_and_all_of_them_can_be_used():
    assert len(ENTRIES) >= 10
    assert [(entry.digest, entry.fault) for _, entry in ENTRIES if entry.fault] == []
    for _, entry in ENTRIES:
        assert [str(plan) for plan in entry.plans] == entry.facts["plans"]
        assert len(entry.facts["program"]) == 64


@pytest.mark.parametrize(
    ("name", "entry"), ENTRIES, ids=[f"{n}-{e.facts['function']}" for n, e in ENTRIES]
)
def test_a_shipped_plan_gives_what_the_loop_gives(name, entry):
    machine, plans = Machine.of(HOST), iter(entry.plans)
    for plan in entry.plans:
        if (plan.ldexp and not machine.ldexp) or (plan.nontemporal and not machine.line_stores):
            pytest.skip(f"expected the vectors of {name}, found {HOST.attrs['mcpu']}")
    # Of several recurrences of a function each has its own, in order.
    scan = parallelize(entry.func, HOST, lambda _: next(plans)).with_attr("global_symbol", "main")
    assert next(plans, None) is None
    built = compile_cached(scan, target=HOST)["main"]
    for case in make_cases(entry.func):
        tensors = [tvm.runtime.tensor(array) for array in case.inputs]
        built(*tensors)
        assert compare(case, [tensors[i].numpy() for i, _ in case.expected]) is None
