"""The training script learns, and both of its scans learn the same."""

import json

import pytest

pytest.importorskip("torch")

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
