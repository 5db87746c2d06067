"""``explain --prove``: the certificate of a user's loop, and what to do without the solver."""

import json
import re
import subprocess
import sys

import pytest

from tvm_scan import proof as proof_module

LOOP = """
from tvm.script import tirx as T

@T.prim_func(s_tir=True)
def hold(X: T.Buffer((3, 50), "{dtype}"), H: T.Buffer((3, 50), "{dtype}")):
    for b in range(3):
        for t in range(50):
            H[b, t] = {step}
"""
OLD = "T.if_then_else(t > 0, H[b, t - 1], T.{dtype}(0))"
STEPS = {
    "clamp": ("int32", f"T.max({OLD} + X[b, t], T.int32(-50))"),
    "affine": ("float32", f"{OLD} * T.float32(0.5) + X[b, t]"),
    "shift": ("uint16", f"({OLD} << T.uint16(1)) | X[b, t]"),
}


@pytest.fixture
def loop(tmp_path):
    def write(name):
        dtype, step = STEPS[name]
        file = tmp_path / f"{name}.py"
        file.write_text(LOOP.replace("{step}", step).replace("{dtype}", dtype))
        return file

    return write


def test_a_certificate_tells_statements_answers_and_times(command, loop):
    code, text, _ = command("explain", loop("clamp"), "--prove")
    assert code == 0
    assert "certificate of hold: proven" in text
    for name in ("step", "elements", "composition", "identity", "numbers"):
        assert re.search(rf"proven +\d+\.\d ms  {name}: \w", text), name
    assert "H: int32  clamp, all int32 and int64, without overflow" in text
    assert re.search(r"^z3 5\.\d+\.\d+, \d+\.\d\d s in all$", text, re.MULTILINE)
    # The loop's own overflow is undefined: the statement is of loops without, and says so.
    assert "assumed: the loop's own sums and products of 32 and 64 bits do not overflow" in text


def test_what_is_assumed_is_of_the_loop_at_hand(command, loop):
    code, text, _ = command("explain", loop("shift"), "--prove")
    assert (code, "certificate of hold: proven" in text) == (0, True)
    assert "modulo 2^n" in text and "assumed:" not in text
    code, text, _ = command("explain", loop("affine"), "--prove")
    assert (code, "affine, real numbers" in text) == (0, True)
    assert "assumed: inputs and carries are finite, and no result overflows" in text
    assert "rounded: |scan - exact| <= 2 (t + c) u M" in text


def test_a_certificate_as_data(command, loop):
    code, text, _ = command("explain", loop("clamp"), "--prove", "--json")
    told = json.loads(text)["proof"]
    assert (code, told["verdict"], told["function"]) == (0, "proven", "hold")
    assert told["solver"].startswith("z3 ")
    (group,) = told["groups"]
    assert {"name", "claim", "verdict", "seconds"} <= set(group["statements"][0])
    code, text, _ = command("explain", loop("clamp"), "--json")
    assert "proof" not in json.loads(text)


def test_a_refuted_loop_ends_with_exit_code_1(command, loop, monkeypatch):
    right = proof_module.prove

    def refuted(found):
        from dataclasses import replace

        certificate = right(found)
        (group,) = certificate.groups
        wrong = replace(
            group.statements[0],
            verdict=proof_module.Verdict.REFUTED,
            counterexample=(("h", "209"), ("x", "131")),
        )
        group = replace(group, statements=(wrong, *group.statements[1:]))
        return replace(certificate, groups=(group,))

    monkeypatch.setattr(proof_module, "prove", refuted)
    code, text, error = command("explain", loop("clamp"), "--prove")
    assert (code, "h = 209, x = 131" in text) == (1, True)
    assert "run the loop as it is" in error


def test_without_z3_it_says_how_to_get_it(command, loop, monkeypatch):
    monkeypatch.setattr(proof_module, "find_spec", lambda name: None)
    code, _, error = command("explain", loop("clamp"), "--prove")
    assert code == 2
    assert "expected the solver z3, found none" in error
    assert "python -m pip install z3-solver" in error
    # All else goes on without it.
    assert command("explain", loop("clamp"))[0] == 0


def test_nothing_but_a_proof_imports_the_solver(loop):
    program = (
        "from tvm_scan._lean import leave_torch_out; leave_torch_out()\n"
        "import sys, runpy, tvm_scan, tvm_scan.proof, tvm_scan.cli.app\n"
        f"found = tvm_scan.extract(runpy.run_path({str(loop('clamp'))!r})['hold'])\n"
        "assert 'z3' not in sys.modules\n"
        "print(tvm_scan.prove(found).verdict)\n"
        "assert 'z3' in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "Verdict.PROVEN"
