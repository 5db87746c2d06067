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
    assert "plan      cpu/walk(columns=16, " in text


def test_explain_as_data(command, program):
    code, text, _ = command("explain", program, "--target", "cuda", "--json")
    report = json.loads(text)
    assert (code, report["family"], len(report["terms"])) == (0, "delta rule", 1)
    assert report["reads"][0]["of"] == "the state after the step"
    assert report["plan"] == ("cuda/matrix products in chunks of 16 steps, a block for 32 columns")
    assert report["unfit"] is None


def test_explain_what_reads_other_terms(command, tmp_path):
    path = tmp_path / "product.py"
    path.write_text(SOURCES["a second update with other keys"])
    code, text, _ = command("explain", path)
    assert code == 0
    assert "e       Ks[b, t, 1 - h // 2, row], of the gated S with 1 of the terms" in text
    path.write_text(SOURCES["a gate of the column"])
    assert "columns'  W[b, t, h, c]" in command("explain", path)[1]


def test_options_of_a_scan(command, program):
    for option in (["--plan", "cpu/lanes()"], ["--cost", "--target", "cuda"], ["--prove"]):
        code, _, error = command("explain", program, *option)
        assert code == 2
        assert f"expected a scan for {option[0]}, found a delta rule" in error
    code, _, error = command("verify", program, "--plan", "cpu/lanes()")
    assert code == 2
    assert "leave --plan out of verify" in error


def test_costs(command, program):
    """Of every walk that could be; the plan is the one of least cost."""
    code, text, _ = command("explain", program, "--cost", "--json")
    report = json.loads(text)
    considered = report["considered"]
    assert code == 0 and len(considered) > 1
    assert report["plan"] == min(considered, key=considered.get)
    assert report["cost"]["seconds"] == considered[report["plan"]]
    code, text, _ = command("explain", program, "--cost")
    assert code == 0
    assert "cost, on paper" in text
    assert all(plan in text for plan in considered)


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
    assert report["plan"].startswith("cpu/walk(columns=16, ")
    assert {run["output"] for run in report["runs"]} == {"Y", "S"}
    assert {run["inputs"] for run in report["runs"]} >= {"random", "growing", "nan", "infinity"}
    assert all(run["holds"] for run in report["runs"])
