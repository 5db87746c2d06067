"""``tvm-scan compile``, as a user meets it."""

import json
import platform
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.support import forks
from tvm_scan.artifact import load
from tvm_scan.cli.app import _described
from tvm_scan.cli.compile import compile_file
from tvm_scan.cli.support.failure import CommandError
from tvm_scan.errors import ScanError

SOURCE = """
import tvm
from tvm import relax

builder = relax.BlockBuilder()
x = relax.Var("x", relax.TensorType([2, 500], "float32"))
with builder.function("main", [x]):
    with builder.dataflow():
        out = builder.emit_output(relax.op.negative(builder.emit(relax.op.cumsum(x, 1))))
    builder.emit_func_output(out)
mod = builder.get()
"""


def exit_code(error):
    """The code with which the command line ends for an error of a command."""
    return error.code if isinstance(error, CommandError) else _described(error)[1]


def tvm_scan(*arguments):
    done = forks.run(
        [sys.executable, "-c", "from tvm_scan.cli import main; main()", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    (folder / "model.py").write_text(SOURCE)
    (folder / "empty.py").write_text("")
    (folder / "broken.pt2").write_text("this is no archive")
    (folder / "broken.onnx").write_text("this is no model")
    (folder / "model.txt").write_text("")
    return folder


def test_a_python_file_becomes_a_folder_that_runs(files, tmp_path):
    out, report = tmp_path / "model", tmp_path / "report.html"
    code, text, error = tvm_scan("compile", files / "model.py", "-o", out, "--report", report)
    assert code == 0, error
    assert "scan      fused_tir_negative_cumsum: reduce, 500 steps, cpu/" in text
    assert "importing model.py ..." in error
    page = report.read_text()
    assert "<td>fused_tir_negative_cumsum</td><td>reduce</td><td>500</td>" in page
    assert "<li>cumsum: fused tir_negative</li>" in page
    assert "://" not in page, "the page needs nothing else"
    x = np.random.default_rng(0).random((2, 500)).astype("float32")
    np.testing.assert_allclose(np.from_dlpack(load(out)(x)), -np.cumsum(x, 1), rtol=1e-4)


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_an_exported_program_as_json(tmp_path, capsys):
    torch = pytest.importorskip("torch")

    class Model(torch.nn.Module):
        def forward(self, x):
            return torch.cumsum(x, 1)

    path = tmp_path / "model.pt2"
    torch.export.save(torch.export.export(Model(), (torch.rand(2, 30),)), path)
    compile_file(path, tmp_path / "out", "cpu", None, None, as_json=True)
    assert json.loads(capsys.readouterr().out)["scans"][0]["families"] == ["reduce"]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("nowhere.pt2", {}, "expected a model file, found nothing"),
        ("model.txt", {}, "expected a model as .pt2, .onnx or .py, got model.txt"),
        ("broken.pt2", {}, "expected broken.pt2 to be a program of torch.export.save"),
        ("broken.onnx", {}, "expected broken.onnx to be an ONNX model|expected the package onnx"),
        ("empty.py", {}, "expected exactly one IRModule in empty.py, found none"),
        (
            "model.py",
            {"target": "tpu"},
            "expected --target cpu, cuda, rocm, opencl, metal, vulkan or webgpu, got tpu",
        ),
        ("model.py", {"target": '{"kind": "hexagon"}'}, "or webgpu, got hexagon"),
        (
            "model.py",
            {"target": "opencl"},
            "whose models `load` runs, of cpu or cuda, got one of o",
        ),
        ("model.py", {"target": '{"kind": "cuda", "arch": 9}'}, "as JSON that TVM takes"),
        ("model.py", {"target": '{"kind"'}, "as JSON that TVM takes"),
        ("model.py", {"database": Path()}, "found a folder without one"),
        ("model.py", {"report": Path("gone/r.html")}, "expected a folder at gone, found none"),
    ],
)
def test_bad_input_is_one_sentence(files, tmp_path, name, options, message):
    target, database = options.get("target", "cpu"), options.get("database")
    out = tmp_path / "out"
    with pytest.raises((CommandError, ScanError), match=message) as raised:
        compile_file(files / name, out, target, database, options.get("report"), False)
    assert exit_code(raised.value) == 2
    assert not (tmp_path / "out").exists()


def test_the_command_fails_without_a_traceback(files, tmp_path):
    code, _, error = tvm_scan("compile", files / "empty.py", "-o", tmp_path / "out")
    assert code == 2
    assert "expected exactly one IRModule" in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("target", "kind", "machine"),
    [
        ('{"kind": "llvm", "mtriple": "aarch64-linux-gnu"}', "llvm", "aarch64"),
        ("cuda:sm_100", "cuda", platform.machine()),
    ],
)
def test_for_another_machine(files, tmp_path, capsys, target, kind, machine):
    compile_file(files / "model.py", tmp_path / "out", target, None, None, as_json=True)
    manifest = json.loads(capsys.readouterr().out)
    found = json.loads(manifest["target"])
    assert (found["kind"], manifest["machine"]) == (kind, machine)
    assert found.get("arch") == ("sm_100" if kind == "cuda" else None)
