"""The command line, as a user meets it: output, files, exit codes, one-sentence errors."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest

SOURCE = """
from tvm.script import tirx as T

@T.prim_func(s_tir=True)
def decay(
    A: T.Buffer((3, 50), "float32"),
    X: T.Buffer((3, 50), "float32"),
    H: T.Buffer((3, 50), "float32"),
):
    for b in range(3):
        for t in range(50):
            H[b, t] = A[b, t] * T.if_then_else(t > 0, H[b, t - 1], T.float32(0)) + X[b, t]
"""
REFUSED = SOURCE.replace("A[b, t] * T.if_then_else", "A[b, t] * T.sin(T.if_then_else").replace(
    "T.float32(0))", "T.float32(0)))"
)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli")
    (folder / "decay.py").write_text(SOURCE)
    (folder / "refused.py").write_text(REFUSED)
    (folder / "broken.py").write_text("x = 1\nraise RuntimeError('no luck')\n")
    (folder / "empty.py").write_text("")
    (folder / "text.npz").write_text("this is no archive")
    rng = np.random.default_rng(0)
    a, x = rng.random((2, 3, 50)).astype("float32")
    np.savez(folder / "inputs.npz", A=a, X=x)
    np.savez(folder / "short.npz", A=a, X=x[:, :-1])
    np.savez(folder / "wide.npz", A=a.astype("float64"), X=x)
    np.savez(folder / "missing.npz", A=a)
    np.savez(folder / "foreign.npz", A=a, X=x, Z=x)
    np.savez(folder / "fortran.npz", A=np.asfortranarray(a), X=x)
    return folder


def loaded(path):
    """The arrays of a file, which is closed."""
    with np.load(path) as arrays:
        return dict(arrays)


def test_run_writes_what_the_loop_computes(command, files):
    out = files / "out.npz"
    code, text, _ = command("run", files / "decay.py", files / "inputs.npz", "-o", out)
    assert code == 0
    assert "largest error to the loop" in text
    inputs, outputs = loaded(files / "inputs.npz"), loaded(out)
    state = np.zeros(3)
    for t in range(50):
        state = inputs["A"][:, t] * state + inputs["X"][:, t]
        np.testing.assert_allclose(outputs["H"][:, t], state, rtol=1e-5)
    assert not list(files.glob("*.part"))


def test_run_as_json_with_a_plan(command, files):
    plan = "cpu/three_phase(chunks=4)"
    code, text, _ = command(
        "run", files / "decay.py", files / "fortran.npz", "--plan", plan, "--json"
    )
    report = json.loads(text)
    assert code == 0
    assert report["plan"] == plan
    assert report["largest_error_to_loop"]["H"] < 1e-5


def test_run_in_c(command, files):
    """A target that is not LLVM's is not therefore a GPU's."""
    target = json.dumps({"kind": "c"})
    code, text, error = command(
        "run", files / "decay.py", files / "inputs.npz", "--target", target, "--json"
    )
    assert code == 0, error
    assert json.loads(text)["largest_error_to_loop"]["H"] < 1e-5


@pytest.mark.parametrize(
    ("file", "inputs", "code", "text"),
    [
        ("nowhere.py", "inputs.npz", 2, "expected a Python file, found nothing"),
        ("broken.py", "inputs.npz", 2, "RuntimeError in .*broken.py, line 2: no luck"),
        ("empty.py", "inputs.npz", 2, "expected exactly one primfunc in empty.py, found none"),
        ("refused.py", "inputs.npz", 3, r"refused(.|\n)*\^\^\^(.|\n)*fix: "),
        ("decay.py", "nowhere.npz", 2, "expected an .npz file, found nothing"),
        ("decay.py", "text.npz", 2, "expected an .npz file of plain arrays"),
        ("decay.py", "short.npz", 2, "expected X with 50 in dimension 1"),
        ("decay.py", "wide.npz", 2, "expected A as float32, got float64"),
        ("decay.py", "missing.npz", 2, "expected an array for the input X"),
        ("decay.py", "foreign.npz", 2, "got also Z"),
    ],
)
def test_bad_input_is_one_sentence(command, files, file, inputs, code, text):
    got, _, error = command("run", files / file, files / inputs)
    assert got == code, error
    assert re.search(text, error), error
    assert "Traceback" not in error


def test_run_refuses_a_plan_that_does_not_fit(command, files):
    arguments = ["run", files / "decay.py", files / "inputs.npz", "--plan"]
    code, _, error = command(*arguments, "cpu/serial_tiles()")
    assert code == 2
    assert "on cpu, got algorithm=serial_tiles" in error
    code, _, error = command(*arguments, "quickly")
    assert code == 2
    assert "expected device/algorithm(field=value, ...)" in error


TREES = {
    # Of 8 threads: 7, 6 and 4 combines; and 7 up, 7 down with a passed prefix each, 1 identity.
    "warp": ("by 4    │    │    │    │    ●", 7 + 6 + 4 + 1),
    "blelloch": ("up      ┴────●", 7 + 2 * 7 + 1 + 2),
}


@pytest.mark.parametrize("tree", TREES)
def test_explain_prints_equation_family_plan_and_tree(command, tmp_path, tree):
    picture = tmp_path / "tree.svg"
    plan = f"cuda/serial_tiles(threads_per_block=128, items_per_thread=8, block_tree={tree})"
    arguments = ["explain", "library:linear_recurrence", "--target", "cuda", "--svg", picture]
    code, text, _ = command(*arguments, "--plan", plan)
    assert code == 0
    assert "H at t  =  A[d, t] * H + X[d, t]" in text
    assert "family    affine" in text
    assert "plan      cuda/serial_tiles" in text
    drawn, dots = TREES[tree]
    assert drawn in text
    import xml.etree.ElementTree as ElementTree

    root = ElementTree.parse(picture).getroot()
    assert root.tag.endswith("svg")
    assert len([e for e in root.iter() if e.tag.endswith("circle")]) == dots


def test_explain_what_a_plan_costs(command):
    arguments = ["explain", "library:linear_recurrence", "--target", "cuda", "--cost"]
    code, text, _ = command(*arguments)
    assert code == 0
    code, data, _ = command(*arguments, "--json")
    shared, cost = json.loads(data)["shared_memory_bytes"], json.loads(data)["cost"]
    assert f"shared    {shared} bytes per block" in text
    assert (code, cost["step_flops"], cost["combine_flops"]) == (0, 2, 3)
    assert cost["bytes"] == 3 * 4 * 3 * 5000


def test_explain_predicts_a_plan_for_the_gpu(command):
    code, text, _ = command("explain", "library:cumsum", "--target", "cuda", "--cost", "--json")
    cost = json.loads(text)["cost"]
    bounds = [cost[name] for name in ("memory", "exponentials", "issue", "lines", "chain")]
    assert (code, cost["exponentials"]) == (0, 0)
    assert max(bounds) < cost["seconds"] < max(bounds) + 1e-5
    _, text, _ = command("explain", "library:cumsum", "--target", "cuda", "--cost")
    shown = text.split("cost, on paper\n")[1]
    numbers = {
        name: float(n.replace(",", "")) for name, n in re.findall(r"(\w+) +([\d,.]+)  ", shown)
    }
    assert {"bytes", "waits", "occupancy", "issue"} < numbers.keys() < {*cost}
    for name in ("memory", "lines", "chain", "seconds"):
        assert numbers[name] == pytest.approx(1e6 * cost[name], abs=0.06), "in microseconds"


def test_explain_says_why_a_plan_is_the_default(command):
    for target in ("cpu", "cuda"):
        code, text, _ = command("explain", "library:cumsum", "--target", target, "--json")
        report = json.loads(text)
        made = report["decision"]
        assert (code, made["nearest"][0]["plan"]) == (0, report["plan"])
        assert 2 <= len(made["nearest"]) <= 5 < made["candidates"]
        assert all(one["seconds"] > 0 for one in made["nearest"])
        _, text, _ = command("explain", "library:cumsum", "--target", target)
        assert f"the least prediction of {made['candidates']} plans" in text
    _, text, _ = command("explain", "library:cumsum", "--plan", "cpu/lanes()", "--json")
    assert json.loads(text)["decision"] is None


def test_explain_a_refusal(command, files):
    code, text, error = command("explain", files / "refused.py", "--json")
    assert code == 3
    assert json.loads(text)["refused"] == "unsupported-step"
    assert "tirx.sin of the carry" in error


def test_explain_source_and_unknown_names(command):
    code, text, _ = command("explain", "library:cumsum", "--target", "cuda", "--source")
    assert code == 0
    assert "__syncthreads();" in text
    code, _, error = command("explain", "library:nothing")
    assert (code, "expected one of cummax" in error) == (2, True)
    code, _, error = command("explain", "library:cumsum", "--target", "tpu")
    assert (
        code,
        "expected --target cpu, cuda, rocm, opencl, metal, vulkan or webgpu, got tpu" in error,
    ) == (2, True)


def test_demo_checks_itself(command):
    code, text, _ = command("demo", "--length", "128", "--d-model", "16", "--json")
    report = json.loads(text)
    assert code == 0
    assert report["bytes"] == 128
    assert report["relative_error"] <= report["bound"]
    assert {"sequential TIR loop", "tvm_scan", "copy of the same bytes"} <= set(report["seconds"])


def test_demo_on_a_file_and_on_none(command, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("abc")
    code, shown, _ = command("demo", "--text", text, "--d-model", "8")
    assert code == 0
    assert "one Mamba layer over 3 bytes" in shown
    text.write_text("")
    code, _, error = command("demo", "--text", text)
    assert (code, "at least one byte" in error) == (2, True)
    code, _, error = command("demo", "--text", tmp_path / "nothing.txt")
    assert (code, "expected a text file, found nothing" in error) == (2, True)


def test_help_is_light_and_has_examples(command):
    program = (
        "import sys\nsys.argv = ['tvm-scan', '--help']\n"
        "from tvm_scan.cli import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "heavy = {'tvm', 'numpy', 'torch'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for name in ("run", "explain", "demo"):
        code, text, _ = command(name, "--help")
        assert code == 0
        assert "Example: tvm-scan" in text


def test_unknown_option_is_a_usage_error(command):
    code, _, error = command("demo", "--nonsense")
    assert code == 2
    assert "No such option" in error
