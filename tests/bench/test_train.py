"""The training script learns, and both of its scans learn the same."""

import json

import pytest

pytest.importorskip("torch")

from bench import torch_page
from bench.train_mamba import main


def test_both_scans_learn_the_same(tmp_path, capsys):
    report = tmp_path / "train.json"
    sizes = {"steps": 12, "batch": 4, "length": 24, "width": 16, "depth": 1, "states": 4}
    options = [part for n, v in sizes.items() for part in (f"--{n}", str(v))]
    assert main([*options, "--tolerance", "1e-4", "--json", str(report)]) == 0
    found = json.loads(report.read_text())
    for name in ("tvm_scan", "loop"):
        losses = found[name]["losses"]
        assert len(losses) == 12
        assert losses[-1] < losses[0] - 0.3
    assert "bits apart" in capsys.readouterr().out
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- training -->\nold\n<!-- /training -->\nafter\n")
    torch_page.write(page, "training", torch_page.training(found))
    text = page.read_text()
    assert text.startswith("before\n<!-- training -->\n12 steps of 4 x 24 bytes, 1 layers of width")
    assert f"| loop | {found['loop']['losses'][0]:.3f} |" in text
    assert "old" not in text
    assert text.endswith("<!-- /training -->\nafter\n")


def test_a_page_without_its_marks(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("no marks")
    with pytest.raises(ValueError, match="expected <!-- training --> and <!-- /training --> in"):
        torch_page.write(page, "training", "")


def test_the_pages_have_their_marks():
    for name, marks in (("measurements", ("torch_bench", "calls")), ("training", ("training",))):
        text = (torch_page.DOCS / f"{name}.md").read_text(encoding="utf-8")
        assert all(f"<!-- {mark} -->" in text and f"<!-- /{mark} -->" in text for mark in marks)
