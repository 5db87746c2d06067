"""``explain`` and ``verify`` of a delta rule, which is no scan."""

import json

import pytest

from tests.programs.engine_variants import VARIANTS

SOURCES = {name: source for name, source, _ in VARIANTS}


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "delta_net.py"
    path.write_text(SOURCES["as it is"])
    return path


def test_explain(command, program):
    code, text, _ = command("explain", program)
    assert code == 0
    said = " ".join(text.split())
    assert "S[b, h, row, c]: float32, 12 rows by 16 columns, first S0[b, h, row, c]" in said
    assert "family    delta rule" in text
    assert "gate      Gs[b, t, h]" in text
    assert "p         Ks[b, t, h // 2, row]" in text
    assert "plan      cpu/delta_walk(" in text and "columns of a state, on the" in text


def test_explain_as_data(command, program):
    code, text, _ = command("explain", program, "--target", "cuda", "--json")
    report = json.loads(text)
    assert (code, report["family"], len(report["terms"])) == (0, "delta rule", 1)
    assert report["reads"][0]["of"] == "the state after the step"
    assert report["plan"] == "cuda/delta_blocks(products=tf32x3)"
    assert report["shared_memory_bytes"] > 1 << 10
    assert "chunks of 16 steps as products of matrices" in report["tree"]


def test_explain_what_reads_other_terms(command, tmp_path):
    path = tmp_path / "product.py"
    path.write_text(SOURCES["a second update with other keys"])
    code, text, _ = command("explain", path)
    assert code == 0
    assert "e       Ks[b, t, 1 - h // 2, row], of the gated S with 1 of the terms" in text
    path.write_text(SOURCES["a gate of the column"])
    assert "columns'  W[b, t, h, c]" in command("explain", path)[1]


def test_options_of_a_scan(command, program):
    code, _, error = command("explain", program, "--prove")
    assert code == 2
    assert "expected a scan for --prove, found a delta rule" in error
    for name in ("explain", "verify"):
        code, _, error = command(name, program, "--plan", "cpu/lanes()")
        assert code == 2
        assert "expected a plan for a delta rule, got one for a recurrence" in error


@pytest.mark.parametrize("name", ["explain", "verify"])
def test_a_plan(command, program, name):
    plan = "cpu/delta_walk(columns=16, steps=2)"
    code, text, _ = command(name, program, "--plan", plan, "--json")
    assert code == 0
    assert json.loads(text)["plan"] == plan
    code, _, error = command(name, program, "--plan", "cpu/delta_walk(columns=0)")
    assert code == 2
    assert "expected 1 to 256 columns of a task, got columns=0; use 32" in error


def test_costs(command, program, tmp_path):
    """Beside those of the nearest other plans, which the default is the least of."""
    code, text, _ = command("explain", program, "--cost", "--json")
    report = json.loads(text)
    nearest = report["decision"]["nearest"]
    assert code == 0 and len(nearest) > 1 and report["decision"]["candidates"] >= 2
    assert report["plan"] == nearest[0]["plan"]
    assert report["cost"]["seconds"] == pytest.approx(nearest[0]["seconds"])
    assert "cpu/sequential()" in [one["plan"] for one in nearest]
    svg = tmp_path / "tree.svg"
    code, text, _ = command("explain", program, "--cost", "--svg", svg)
    assert code == 0
    assert "cost, on paper" in text and "columns of a state" in text
    said = " ".join(text.split())
    assert all(one["plan"] in said for one in nearest)
    assert "delta_walk" in svg.read_text()
    code, text, _ = command("explain", program, "--cost", "--target", "cuda")
    assert code == 0
    assert "barriers of a block" in text


def test_explain_what_is_none(command, tmp_path):
    path = tmp_path / "other.py"
    path.write_text(SOURCES["another column's error"])
    code, _, error = command("explain", path)
    assert code == 3
    assert "refused" in error


def test_verify(command, program):
    code, text, _ = command("verify", program, "--json")
    report = json.loads(text)
    assert code == 0
    assert report["plan"].startswith("cpu/delta_walk(")
    assert {run["output"] for run in report["runs"]} == {"Y", "S"}
    assert {run["inputs"] for run in report["runs"]} >= {"random", "growing", "nan", "infinity"}
    assert all(run["holds"] for run in report["runs"])


def test_records(command, program, tmp_path, monkeypatch):
    """Tuned, listed, shown, applied, run again and reported as every other loop."""
    monkeypatch.setenv("TVM_NUM_THREADS", "2")
    records, library = tmp_path / "records", tmp_path / "rule.so"
    code, text, error = command("tune", program, "--budget", "3", "--database", records, "--json")
    assert code == 0, error
    (found,) = json.loads(text)["functions"]
    plans = [trial["plan"] for trial in found["trials"]]
    assert len(plans) == 3 and "cpu/sequential()" in plans
    assert found["best"].startswith("cpu/delta_walk(")
    assert found["best_seconds"] < found["sequential_seconds"]
    code, text, _ = command("list", records, "--json")
    rows = json.loads(text)["records"]
    assert (code, sorted(row["plans"][0] for row in rows)) == (0, sorted(plans))
    assert all(row["unusable"] is None for row in rows)
    code, text, _ = command("best", records, program, "--json")
    assert (code, json.loads(text)["program"]["id"]) == (0, rows[0]["id"])
    code, text, _ = command("show", records, rows[0]["id"], "--details")
    assert code == 0 and "columns of a state" in text and "sch.annotate" in text
    code, text, _ = command("apply", records, program, "-o", library, "--json")
    assert code == 0 and library.is_file()
    assert json.loads(text)["functions"]["program"]["plans"] == rows[0]["plans"]
    page = tmp_path / "report.html"
    assert command("report", records, "-o", page)[0] == 0
    assert "delta_walk" in page.read_text()
    code, text, _ = command("verify", records)
    assert code == 0 and "3 right, 0 wrong" in text
