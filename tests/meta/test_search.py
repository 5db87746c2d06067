"""The search: end to end on this CPU, wrong candidates, budgets, seeds."""

import hashlib
import json
import logging
import re
import sys
import time

import numpy as np
import pytest
import tvm
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms
from tvm.script import tirx as T
from tvm.target import Target

from tests.programs import accepted_programs
from tests.support.cuda_harness import CUDA_TARGET
from tvm_scan import extract, library
from tvm_scan.algebra import Reduce
from tvm_scan.errors import RefusalError, ScanError
from tvm_scan.meta import RecordStore, tune
from tvm_scan.meta.measure import progress
from tvm_scan.meta.measure.check import WRONG, compare, make_cases
from tvm_scan.meta.measure.duration import duration
from tvm_scan.meta.search.candidates import candidate_of, first_plans
from tvm_scan.meta.space.decisions import size
from tvm_scan.meta.store.replay import replay
from tvm_scan.schedules import expand_scans
from tvm_scan.schedules.splice import ensure_blocks

CPU = Target.from_device("cpu")
QUICK = ms.runner.EvaluatorConfig(number=1, repeat=2, min_repeat_ms=1)
FUNCS = {
    "sum": library.cumsum(16, 2000),
    "affine": library.linear_recurrence(4, 3000),
}


@T.prim_func(s_tir=True)
def refused(X: T.Buffer((8, 20), "float32"), Y: T.Buffer((8, 20), "float32")):
    for b, t in T.grid(8, 20):
        with T.sblock("scan"):
            vb = T.axis.spatial(8, b)
            vt = T.axis.scan(20, t)
            Y[vb, vt] = T.sin(T.if_then_else(vt > 0, Y[vb, vt - 1], T.float32(0))) + X[vb, vt]


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    folder = tmp_path_factory.mktemp("records")
    return tune(FUNCS, CPU, folder, trials=6, seed=1, config=QUICK, progress=False)


def test_every_trial_ran_and_is_recorded(tuned):
    assert [f.name for f in tuned.functions] == list(FUNCS)
    for found in tuned.functions:
        assert len(found.trials) == 6
        assert [t for t in found.trials if t.error] == []
        assert found.sequential is not None
        assert found.best.seconds == min(t.seconds for t in found.trials)
        assert len({t.plans for t in found.trials}) == 6
    store = RecordStore(tuned.database)
    assert len(store.entries()) == 12
    for name, func in FUNCS.items():
        best = next(f for f in tuned.functions if f.name == name).best
        entry = store.best(func, CPU)
        assert tuple(entry.plans) == best.plans
        assert entry.facts["seed"] == 1
        assert entry.facts["tvm"].startswith("0.27")


def test_stock_tvm_reads_and_replays_the_records(tuned):
    database = ms.database.JSONDatabase(
        str(tuned.database / "database_workload.json"),
        str(tuned.database / "database_tuning_record.json"),
        allow_missing=False,
    )
    assert len(database) == 12
    func = FUNCS["affine"]
    sch = ms.tir_integration.compile_tir(database, func, CPU)
    ours = replay(RecordStore(tuned.database), func, CPU)
    expanded = expand_scans(Schedule(sch.mod)).mod["main"]
    tvm.ir.assert_structural_equal(expanded.body, ours.body)
    rng = np.random.default_rng(0)
    a, x = rng.random((2, 4, 3000)).astype("float32")
    h = tvm.runtime.tensor(np.zeros_like(x))
    built = tvm.compile(ours.with_attr("global_symbol", "main"), target=CPU)
    built["main"](tvm.runtime.tensor(a), tvm.runtime.tensor(x), h)
    want, _ = library.linear_recurrence_reference(a.astype("float64"), x.astype("float64"))
    np.testing.assert_allclose(h.numpy(), want, 1e-5)


def test_a_wrong_candidate_is_reported_and_never_recorded(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(Reduce, "combine", lambda self, earlier, later: later)
    monkeypatch.setattr(Reduce, "plainly", lambda self: None)
    with caplog.at_level(logging.ERROR, "tvm_scan"):
        func = library.cumsum(1, 4096)
        result = tune(func, CPU, tmp_path, trials=4, config=QUICK, progress=False)
    wrong = result.wrong
    assert wrong
    combining = ("three_phase", "time_vector")
    assert all(any(c in str(t) for c in combining) and t.seconds is None for t in wrong)
    assert WRONG in caplog.text
    assert "as the loop has it on exact inputs" in caplog.text
    recorded = {str(plan) for e in RecordStore(tmp_path).entries() for plan in e.plans}
    assert recorded == {"cpu/sequential()"}


def test_the_check_sees_one_wrong_cell():
    (case,) = make_cases(library.cumsum(3, 50))
    ((_, want),) = case.expected
    assert compare(case, [want.copy()]) is None
    bad = want.copy()
    bad[1, 30] += 1
    assert "[1, 30] of parameter 1" in compare(case, [bad])
    bad[1, 30] = np.nan
    assert "got nan" in compare(case, [bad])
    for rounded in make_cases(library.ema(3, 500)):
        ((_, want),) = rounded.expected
        bad = want.copy()
        assert compare(rounded, [bad * np.float32(1 + 1e-7)]) is None
        bad[2, 499] *= 1.01
        assert compare(rounded, [bad]) is not None


class FakeBuilder:
    """Builds nothing: an artifact is the text of the program."""

    def __init__(self):
        self.built = []

    def build(self, inputs):
        self.built += [str(item.mod) for item in inputs]
        names = [f"/nowhere/{len(self.built) - len(inputs) + i}/a" for i in range(len(inputs))]
        return [ms.builder.BuilderResult(name, None) for name in names]


class Future:
    def __init__(self, seconds):
        self.seconds = seconds

    def result(self):
        return ms.runner.RunnerResult([self.seconds], None)


class FakeRunner:
    """A time that depends on the program alone."""

    def __init__(self, builder, pause=0.0):
        self.builder, self.pause = builder, pause

    def run(self, inputs):
        time.sleep(self.pause)
        numbers = [int(str(item.artifact_path).split("/")[2]) for item in inputs]
        return [Future(1e-3 + len(self.builder.built[n]) * 1e-7) for n in numbers]


def pretend(folder, func, pause=0.0, **options):
    builder = FakeBuilder()
    return tune(
        func,
        CPU,
        folder,
        builder=builder,
        runner=lambda _cases: FakeRunner(builder, pause),
        progress=False,
        **options,
    )


class Moods(FakeRunner):
    """Its first answer is up to a tenth too good; the program ``wrong`` fails from then on."""

    def __init__(self, builder, wrong=""):
        super().__init__(builder)
        self.wrong, self.seen = wrong, {}

    def run(self, inputs):
        out = []
        for item, future in zip(inputs, super().run(inputs), strict=True):
            text = self.builder.built[int(str(item.artifact_path).split("/")[2])]
            turn = self.seen[text] = self.seen.get(text, 0) + 1
            luck = 0.9 + (hash_of(text) % 1000) / 10000 if turn == 1 else 1.0
            future.seconds *= luck
            out.append(Wrong() if turn > 1 and text == self.wrong else future)
        return out


class Wrong:
    def result(self):
        return ms.runner.RunnerResult(None, f"{WRONG}: expected 1, got 2")


def hash_of(text):
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little")


def with_moods(folder, **options):
    builder = FakeBuilder()
    runner = Moods(builder, **options)
    func = library.cumsum(64, 4096)
    made = {"builder": builder, "runner": lambda _: runner, "progress": False}
    tuned = tune(func, CPU, folder, trials=16, **made)
    return tuned.functions[0], runner, RecordStore(folder).best(func, CPU)


def test_luck_does_not_win(tmp_path):
    found, runner, entry = with_moods(tmp_path)
    assert found.best.confirmed and found.default.confirmed
    assert found.best.seconds <= found.default.seconds
    assert tuple(entry.plans) == found.best.plans and entry.seconds == found.best.seconds
    again = [trial for trial in found.trials if trial.confirmed]
    assert 2 <= len(again) <= 24
    texts = [text for text, turns in runner.seen.items() if turns > 1]
    assert len(texts) == len(again) and {runner.seen[t] % 3 for t in texts} == {1}
    assert len(RecordStore(tmp_path).entries()) == len(found.trials)


def test_a_candidate_that_is_wrong_in_the_finals_loses_its_record(tmp_path, caplog):
    found, runner, _ = with_moods(tmp_path / "right")
    fastest = min(
        (text for text, turns in runner.seen.items() if turns > 1), key=lambda text: len(text)
    )
    with caplog.at_level(logging.ERROR, "tvm_scan"):
        bad, _, entry = with_moods(tmp_path / "wrong", wrong=fastest)
    (trial,) = bad.wrong
    assert trial.plans == found.best.plans and trial.plans != tuple(entry.plans)
    assert WRONG in caplog.text
    recorded = {tuple(e.plans) for e in RecordStore(tmp_path / "wrong").entries()}
    assert recorded == {t.plans for t in bad.trials if not t.wrong}


@pytest.mark.parametrize("strategy", ["auto", "random"])
def test_a_seed_makes_it_reproducible(tmp_path, strategy):
    func = library.cumsum(64, 4096)
    runs = [
        pretend(tmp_path / str(i), func, trials=12, seed=seed, strategy=strategy)
        for i, seed in enumerate((3, 3, 4))
    ]
    plans = [[str(t) for t in run.functions[0].trials] for run in runs]
    assert plans[0] == plans[1] != plans[2]
    assert len(set(plans[0])) == 12
    assert plans[0][0] == str(RecordStore(tmp_path / "0").entries()[0].plans[0])


def test_a_small_space_is_measured_whole(tmp_path):
    func = library.linear_recurrence(4, 7)
    result = pretend(tmp_path, func, trials=64)
    found = result.functions[0]
    assert found.space == size(CPU, extract(func)) == len(found.trials)


def test_the_model_goes_on_until_the_space_is_empty(tmp_path):
    func = library.linear_recurrence(4, 7)
    found = pretend(tmp_path, func, trials=64, strategy="model").functions[0]
    assert len({t.plans for t in found.trials}) == len(found.trials) == found.space


def test_minutes_are_a_budget(tmp_path):
    begin = time.monotonic()
    result = pretend(tmp_path, library.cumsum(64, 4096), pause=0.2, budget=0.05, trials=1000)
    assert 1 <= len(result.functions[0].trials) < 60
    assert time.monotonic() - begin < 15
    assert not result.interrupted


def test_what_cannot_be_tuned_says_why(tmp_path):
    with pytest.raises(RefusalError, match=r"(?s)unsupported-step.*\^\^\^"):
        tune(refused, CPU, tmp_path)
    with pytest.raises(ScanError, match="expected constant extents, got symbolic ones"):
        tune(library.cumsum(3, None), CPU, tmp_path)
    with pytest.raises(ScanError, match="expected strategy auto, model or random"):
        tune(library.cumsum(3, 9), CPU, tmp_path, strategy="luck")
    with pytest.raises(ScanError, match="found no function"):
        tune(tvm.IRModule(), CPU, tmp_path)


@T.prim_func(s_tir=True)
def two_scans(
    X: T.Buffer((8, 200), "float32"),
    Y: T.Buffer((8, 200), "float32"),
    Z: T.Buffer((8, 200), "float32"),
):
    for b in range(8):
        for t in range(200):
            Y[b, t] = T.if_then_else(t > 0, Y[b, t - 1], T.float32(0)) + X[b, t]
    for b in range(8):
        for t in range(200):
            Z[b, t] = T.max(T.if_then_else(t > 0, Z[b, t - 1], T.float32(-1e9)), Y[b, t])


def test_two_recurrences_of_one_function_have_a_plan_each(tmp_path):
    found = pretend(tmp_path, two_scans, trials=20, strategy="model").functions[0]
    assert found.space == size(CPU, extract(two_scans)) ** 2
    assert len({t.plans for t in found.trials}) == 20
    assert {len(t.plans) for t in found.trials} == {2}
    assert any(a != b for a, b in (t.plans for t in found.trials))
    entries = RecordStore(tmp_path).entries()
    assert {tuple(e.plans) for e in entries} == {t.plans for t in found.trials}
    (case,) = make_cases(two_scans)
    arrays = [tvm.runtime.tensor(a) for a in case.inputs]
    scheduled = replay(RecordStore(tmp_path), two_scans, CPU)
    tvm.compile(scheduled.with_attr("global_symbol", "main"), target=CPU)["main"](*arrays)
    assert compare(case, [arrays[i].numpy() for i, _ in case.expected]) is None


def test_inputs_of_ones_own_are_checked_with(tmp_path):
    x = np.arange(150, dtype="float32").reshape(3, 50)
    (case,) = make_cases(library.cumsum(3, 50), inputs={"X": x})
    assert case.name == "given"
    np.testing.assert_array_equal(case.inputs[0], x)
    np.testing.assert_array_equal(case.expected[0][1], np.cumsum(x, 1))


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_says_trials_best_and_the_phase(tmp_path, capsys, monkeypatch, terminal):
    """A bar on a terminal, lines elsewhere; both end with what the search returns."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    builder = FakeBuilder()
    result = tune(
        library.linear_recurrence(4, 7),
        CPU,
        tmp_path,
        builder=builder,
        runner=lambda _cases: Moods(builder),
        progress=True,
    )
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capsys.readouterr().err)
    (found,) = result.functions
    last = [line for line in text.splitlines() if "linear_recurrence" in line]
    assert "linear_recurrence" in text and "confirming" in text
    count, best = len(found.trials), duration(found.best.seconds)
    end = f"{count}/{count} best {best}" if terminal else f"{count} of {count}, best {best}"
    assert end in last[-1] and "done" in last[-1]


def test_lines_come_every_few_seconds(capsys):
    """However long a build takes; and at once where a phase begins."""
    with progress.Progress(True, every=0.2) as bar:
        bar.begin("cumsum", 9)
        time.sleep(1.1)
        waited = capsys.readouterr().err.splitlines()
        bar.advance(1e-5)
        bar.confirm(2)
        bar.end(1, 2e-5)
    assert 2 <= len(waited) <= 7
    assert all(line.startswith("cumsum: 0 of 9, best none yet, ") for line in waited)
    ends = [line.partition("best ")[2] for line in capsys.readouterr().err.splitlines()]
    assert [end.partition(",")[0] for end in ends][-2:] == ["10 us", "20 us"]
    assert ends[-2].endswith("confirming 2") and ends[-1].endswith("done")


def test_a_search_starts_from_the_records_that_are_there(tmp_path):
    func = library.linear_recurrence(4, 3000)
    first = pretend(tmp_path, func, trials=6).functions[0]
    recorded = {str(t): t.seconds for t in first.trials}
    again = pretend(tmp_path, func, trials=5).functions[0]
    assert (again.measured, len(again.trials)) == (5, 11)
    old = {str(t): t for t in again.trials if str(t) in recorded}
    assert set(old) == set(recorded)
    assert all(
        t.recorded and t.seconds == recorded[str(t)] for t in old.values() if not t.confirmed
    )
    assert len({t.plans for t in again.trials}) == 11, "none of them twice"
    assert len(RecordStore(tmp_path).entries()) == 11
    assert again.default is not None and again.sequential is not None


def test_records_of_another_machine_are_not_started_from(tmp_path):
    func = library.linear_recurrence(4, 3000)
    pretend(tmp_path, func, trials=4)
    path = tmp_path / "manifest.json"
    manifest = json.loads(path.read_text())
    for facts in manifest["records"].values():
        facts["processor"] = "another one"
    path.write_text(json.dumps(manifest))
    again = pretend(tmp_path, func, trials=4).functions[0]
    assert again.measured == len(again.trials) == 4


def first_candidates_agree(func, target, device):
    (case,) = make_cases(func)
    (position, want) = case.expected[0]
    np.testing.assert_array_equal(want, np.cumsum(case.inputs[0], 1))
    mod = tvm.IRModule({"main": ensure_blocks(func)})
    spaces = first_plans(mod, target)
    for plans in spaces:
        made = candidate_of(mod, plans, target)
        built = tvm.compile(made.measure.sch.mod, target=target)["main"]
        tensors = [tvm.runtime.tensor(value, device) for value in case.inputs]
        built(*tensors)
        assert compare(case, [tensors[position].numpy()]) is None
    return {plans[0].algorithm for plans in spaces}


@pytest.mark.parametrize("name", ["thread_bound", "one_block"])
def test_a_function_bound_to_threads_is_tuned_for_this_cpu(name):
    """The loop among the candidates, too, although its threads are none here."""
    found = first_candidates_agree(getattr(accepted_programs, name), CPU, tvm.cpu())
    assert found >= {"sequential", "lanes", "three_phase"}


@pytest.mark.parametrize("name", ["thread_bound", "one_block"])
def test_a_function_bound_to_threads_is_tuned_as_any_other(name):
    found = first_candidates_agree(getattr(accepted_programs, name), CUDA_TARGET, tvm.cuda())
    assert found >= {"lanes", "serial_tiles"}
