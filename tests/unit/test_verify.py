"""``verify`` tells a right scan from a wrong one, and the laws a right algebra from a wrong one."""

import dataclasses
import json

import numpy as np
import pytest
from tvm import tirx
from typer.testing import CliRunner

from tests.programs.family_programs import PROGRAMS
from tvm_scan import ScanPlan, extract, library, parallelize, verify
from tvm_scan.algebra import Affine
from tvm_scan.cli.app import app
from tvm_scan.errors import RefusalError, ScanError
from tvm_scan.schedules import verification
from tvm_scan.schedules.law_checks import check_laws

CHUNKS = ScanPlan.parse("cpu/three_phase(chunks=8, lane_block=4)")


@pytest.mark.parametrize("name", ["second_order", "reset_sum", "automaton", "running_argmax"])
def test_families_hold(name):
    comparisons = verify(PROGRAMS[name][0], plan=CHUNKS)
    assert all(c.holds for c in comparisons), [c for c in comparisons if not c.holds]
    assert {c.inputs for c in comparisons} >= {"random", "zeros"}


def test_symbolic_lengths_and_halves():
    assert all(c.holds for c in verify(library.linear_recurrence(None, None), plan=CHUNKS))
    found = {c.inputs: c for c in verify(library.linear_recurrence(3, 500), plan=CHUNKS)}
    assert np.isnan(found["nan"].bound)
    assert found["random"].bound > 0


class Swapped(Affine):
    def combine(self, earlier, later):
        return super().combine(later, earlier)


class Forgetful(Affine):
    def identity(self):
        return (tirx.const(0, self.dtype), tirx.const(0, self.dtype))


def test_a_wrong_algebra_is_named_with_place_and_values(monkeypatch):
    combine = Affine.combine
    monkeypatch.setattr(Affine, "extend", lambda self, f, g: combine(self, g, f))
    func = library.linear_recurrence(3, 500)
    wrong = [c for c in verify(func, plan=CHUNKS) if not c.holds]
    assert wrong
    assert wrong[0].loop != wrong[0].scan
    with pytest.raises(ScanError, match=r"expected H\[\d, \d+\] = .* as the loop has it .* got"):
        parallelize(func, plan=CHUNKS, verify=True)


def test_a_right_one_is_scheduled_as_without():
    func = library.cumsum(2, 300)
    checked = parallelize(func, plan=CHUNKS, verify=True)
    assert checked.script() == parallelize(func, plan=CHUNKS).script()


def test_refused_functions_have_nothing_to_verify():
    from tests.programs.refused_programs import REFUSED

    with pytest.raises(RefusalError, match="sin"):
        verify(REFUSED["sine"][0])


@pytest.mark.parametrize("name", PROGRAMS)
def test_laws_hold_on_samples(name):
    for check in check_laws(extract(PROGRAMS[name][0])):
        assert check.largest_error < 1e-4, check


@pytest.mark.parametrize(("kind", "law"), [(Swapped, "apply"), (Forgetful, "identity")])
def test_broken_laws_show(kind, law):
    found = extract(library.linear_recurrence(3, 10))
    good = found.algebras[0]
    broken = kind(good.a, good.b, good.dtype)
    group = dataclasses.replace(found.groups[0], algebra=broken)
    checks = check_laws(dataclasses.replace(found, groups=(group,)))
    assert any(law in c.law and c.largest_error > 1e-2 for c in checks), checks


def test_command():
    done = CliRunner().invoke(app, ["verify", "library:cumsum", "--json"])
    assert done.exit_code == 0, done.output
    report = json.loads(done.output)
    assert {run["inputs"] for run in report["runs"]} == set(verification._CASES)
    assert all(run["holds"] for run in report["runs"])
    assert len(report["laws"]) == 3
    shown = CliRunner().invoke(app, ["verify", "library:cummax"])
    assert "plan cpu/" in shown.output


def test_explain_shows_the_laws():
    done = CliRunner().invoke(app, ["explain", "library:cummax"])
    assert done.exit_code == 0, done.output
    assert "exact" in done.output
    assert "combine(combine(f, g), k) = combine(f, combine(g, k))" in done.output
