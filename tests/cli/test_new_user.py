"""The command, tried by somebody who has just installed it: what is answered at once, and how."""

import json
import os
import re
import shutil
import subprocess
import sys
from importlib import metadata

import pytest
from tvm.target import Target

from tests.cli.test_command import SOURCE
from tests.meta.test_database import FACTS
from tests.meta.test_nearest import CHUNKS, PAIRS, commit
from tests.support import forks
from tvm_scan import ScanPlan, library
from tvm_scan.cli.support.asked import asked_of
from tvm_scan.cli.support.load import load_file, make_target
from tvm_scan.meta import RecordStore

MAIN = "from tvm_scan.cli import main\nif __name__ == '__main__': main()"
#: Ends with what was imported of what takes long.
WITHOUT_TVM = (
    "import sys\nfrom tvm_scan.cli import main\n"
    "try: main()\nexcept SystemExit as done: print('exit', done.code)\n"
    "print(sorted({'tvm', 'numpy', 'torch'} & set(sys.modules)))\n"
)
CPU = Target.from_device("cpu")
LOOP = ScanPlan.of("cpu", "sequential")
WHAT = ("library:cumsum", "--shape", "4,4000")


def lightly(*arguments, **environment):
    """Run a command in a process of its own: its lines and its errors; TVM is not imported."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TVM, *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "COLUMNS": "80", **environment},
        check=True,
    )
    *lines, heavy = done.stdout.splitlines()
    assert heavy == "[]", (heavy, done.stdout, done.stderr)
    return lines, done.stderr


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """Three records of a function, as tune writes them, and one of two others."""
    store = RecordStore(tmp_path_factory.mktemp("new_user") / "records")
    asked = asked_of(WHAT[0], None, WHAT[2], "float32", "cpu").words
    facts = {**FACTS, "function": "cumsum", "asked": asked, "samples": [2e-6, 3e-6, 4e-6]}
    for plan, seconds in ((LOOP, 8e-6), (CHUNKS, 4e-6), (PAIRS, 2e-6)):
        commit(store, library.cumsum(4, 4000), plan, seconds, facts=facts)
    long = "cpu/three_phase(chunks=16, time_vector=16, time_runs=True, nontemporal=True)"
    commit(store, library.cumsum(4, 1 << 20), ScanPlan.parse(long), 3e-3, facts=FACTS)
    commit(store, library.selective_scan(1, 64, 1024, 16), LOOP, 1e-3, facts=FACTS)
    return store.folder


def test_the_version(command):
    code, text, _ = command("--version")
    assert (code, text) == (0, f"tvm_scan {metadata.version('tvm_scan')}\n")


#: What a shell asks for, and what it is told.
COMPLETED = {"tune --bud": "--budget", "ex": "explain", "cache li": "limit"}
#: The file of each shell that the completion is written to.
SHELLS = {
    "bash": ".bash_completions/tvm-scan.sh",
    "zsh": ".zfunc/_tvm-scan",
    "fish": ".config/fish/completions/tvm-scan.fish",
}


@pytest.mark.parametrize("line", COMPLETED)
@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_completes_commands_and_options(shell, line):
    words = f"tvm-scan {line}"
    about = {"_TVM_SCAN_COMPLETE": f"complete_{shell}"}
    if shell == "bash":
        about |= {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    else:  # fish asks first whether there is anything, by another action
        about |= {"_TYPER_COMPLETE_ARGS": words, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    lines, _ = lightly(**about)
    told = [re.split(r'["\t]', text) for text in lines if not text.startswith("exit")]
    assert any(COMPLETED[line] in parts for parts in told), lines


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_is_installed_for_the_shell_that_is_named(shell, tmp_path):
    home = {"HOME": str(tmp_path), "XDG_CONFIG_HOME": "", "SHELL": "/bin/sh"}
    lightly("--install-completion", shell, **home)
    written = {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()}
    assert {name for name in written if not name.endswith("rc")} == {SHELLS[shell]}
    shown, _ = lightly("--show-completion", shell, **home)
    script = "\n".join(line for line in shown if not line.startswith("exit"))
    assert f"_TVM_SCAN_COMPLETE=complete_{shell}" in script
    assert script.strip() == (tmp_path / SHELLS[shell]).read_text().strip()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("tune --nonsense", "No such option: --nonsense.* tvm-scan tune --help$"),
        ("tune", "Missing argument .*; see tvm-scan tune --help$"),
        ("explain x.py --plan", "requires an argument; see tvm-scan explain --help$"),
        ("--install-completion csh", "expected one of bash, .*, got 'csh'; see tvm-scan --help$"),
        ("cache limit much", "see tvm-scan cache limit --help$"),
        ("explian", "No such command 'explian'. Did you mean 'explain'. See tvm-scan --help$"),
    ],
)
def test_a_usage_error_names_the_help_of_its_command(line, said):
    _, error = lightly(*line.split())
    assert re.search(said, error.strip()), error


def test_no_command_is_the_help():
    lines, error = lightly()
    assert error == "" and "exit 2" in lines and any("explain" in line for line in lines)


@pytest.mark.parametrize(
    "line",
    [
        "explain nowhere.py",
        "verify nowhere.py",
        "run nowhere.py inputs.npz",
        "compare nowhere.py loop default",
        "tune nowhere.py",
        "tune nowhere.pt2",
        "compile nowhere.onnx -o built",
        "demo --text nowhere.txt",
        "explain library:cumsum --svg nowhere/tree.svg",
        "list nowhere",
        "best nowhere library:cumsum",
        "best {records} nowhere.py",
        "show nowhere 3f",
        "apply nowhere library:cumsum -o x.so",
        "apply {records} library:cumsum -o nowhere/x.so",
        "report nowhere -o x.html",
        "report {records} -o nowhere/x.html",
        "merge into nowhere",
        "prune nowhere",
        "export nowhere -o x.zip",
        "import nowhere.zip",
    ],
)
def test_what_is_missing_is_said_before_tvm_is_imported(records, line):
    lines, error = lightly(*line.format(records=records).split())
    assert lines == ["exit 2"]
    assert re.search(
        r"expected .*, found (nothing|none).*nowhere|nowhere, found (nothing|none)", error
    )


def test_tables_of_records_need_no_tvm_and_fit_80_columns(records):
    lines, _ = lightly("list", records)
    assert "5 usable records, 0 others, 0 bad lines" in lines
    assert max(map(len, lines)) <= 80
    (at,) = (i for i, line in enumerate(lines) if "4x1048576" in line)
    assert lines[at + 1].startswith(" " * 10 + "cpu/three_phase(chunks=16, time_vector=16,")
    assert lines[at + 2].strip() == "nontemporal=True)"
    lines, _ = lightly("best", records, *WHAT)
    assert lines[0].split()[1:] == ["2", "us", "cumsum", "4x4000"]
    digest = lines[0].split()[0]
    lines, _ = lightly("show", records, digest)
    text = "\n".join(lines)
    assert max(map(len, lines)) <= 80
    assert "time      2 us, the median of 3, from 2 us to 4 us" in text
    assert "gain      4.00 times as fast as the loop's 8 us" in text
    assert f"plan      {PAIRS}" in text and "cores" in text


def test_a_table_takes_half_a_second(records):
    """In processor time, beside what the libraries of the command need: machines are loaded."""
    programs = {"list": MAIN, "libraries": "import typer, pydantic"}
    took = {name: [] for name in programs}
    for _ in range(3):
        for name, program in programs.items():
            begin = os.times()
            words = [sys.executable, "-c", program, "list", str(records)]
            subprocess.run(words, capture_output=True, check=True)
            end = os.times()
            took[name].append(sum(end[2:4]) - sum(begin[2:4]))
    assert min(took["list"]) < min(took["libraries"]) + 0.3, took


def test_best_without_tvm_is_best_with_it(records, command):
    lines, _ = lightly("best", records, *WHAT, "--json")
    report = json.loads(lines[0])
    store = RecordStore(records)
    assert report["cumsum"]["id"] == store.best(library.cumsum(4, 4000), CPU).digest
    # By other words it is looked up, and found again.
    code, text, _ = command("best", records, *WHAT, "--target", str(CPU))
    assert (code, report["cumsum"]["id"][:8] in text) == (0, True)


def test_a_file_is_known_again_by_its_text(tmp_path):
    path, folder = tmp_path / "decay.py", tmp_path / "records"
    path.write_text(SOURCE)
    asked = asked_of(str(path), None, None, "float32", "cpu")
    func = load_file(path, None)
    commit(RecordStore(folder), func, LOOP, 2e-6, facts={**FACTS, "asked": asked.words})
    lines, _ = lightly("best", folder, path)
    assert lines[0].split()[1:] == ["2", "us", "decay", "3x50"]


@pytest.mark.parametrize(
    "change",
    [
        ("# more", "x"),  # a comment: other words, looked up by the structure
        ("import numpy as np", None),
        ("from sizes import LENGTH", None),
        ("from .sizes import LENGTH", None),
        ("LENGTH = int(open('sizes').read())", None),
        ("LENGTH = [__import__('os')]", None),
        ("assert True", None),
        ("def make(): pass", None),
        (SOURCE.replace("decay", "other"), None),
        ("x = 'global_symbol'", None),
        ("LENGTH =", None),
    ],
)
def test_a_file_that_may_say_something_else_is_run(tmp_path, change):
    added, words = change
    path = tmp_path / "decay.py"
    path.write_text(SOURCE)
    first = asked_of(str(path), None, None, "float32", "cpu")
    path.write_text(f"{SOURCE}\n{added}\n")
    found = asked_of(str(path), None, None, "float32", "cpu")
    assert (found is None) == (words is None) and found != first
    if added.startswith("\nfrom tvm"):  # which of the two is asked for is said
        assert asked_of(str(path), "other", None, "float32", "cpu").name == "other"


def test_a_faster_record_of_another_hand_is_the_best(records, tmp_path, command):
    folder = shutil.copytree(records, tmp_path / "records")
    faster = commit(RecordStore(folder), library.cumsum(4, 4000), LOOP, 1e-6)
    lines, _ = lightly("best", folder, *WHAT)
    assert lines[0].startswith(faster.digest[:8])
    manifest = json.loads((folder / "manifest.json").read_text())
    about = manifest["records"][faster.digest]["summary"]
    about["plans"] = ["cpu/lanes()"]  # not what the record says: the seal is broken
    (folder / "manifest.json").write_text(json.dumps(manifest))
    code, text, _ = command("best", folder, *WHAT)
    assert code == 0 and str(LOOP) in text


def test_tune_tells_without_a_terminal_and_starts_from_its_records(tmp_path):
    words = ["tune", *WHAT[:2], "2,300", "--budget", "2", "--database", str(tmp_path / "records")]
    text = {}
    for turn in ("first", "second"):
        done = forks.run(
            [sys.executable, "-c", MAIN, *words],
            workers=True,
            capture_output=True,
            text=True,
            check=True,
        )
        assert re.search(r"^cumsum: 2 of 2, best .*, done$", done.stderr, re.MULTILINE)
        shown = re.findall(r"best +([\d.]+ \w+)", done.stderr)[-1]
        assert re.search(rf"^best +{shown}  cpu/", done.stdout, re.MULTILINE)
        text[turn] = done.stdout
    assert "trials      2 of a space of" in text["first"] and "on record" not in text["first"]
    assert ", beside 2 on record" in text["second"]
    found = RecordStore(tmp_path / "records").entries()
    assert len(found) == len({tuple(entry.plans) for entry in found}) == 4


def test_explain_and_verify_speak_of_one_plan(command, tmp_path):
    (tmp_path / "decay.py").write_text(SOURCE)
    for what in ("library:cumsum", str(tmp_path / "decay.py")):
        told = json.loads(command("explain", what, "--json")[1])
        report = json.loads(command("verify", what, "--json")[1])
        assert told["plan"] in (report["plan"], *report["instead_of"])


@pytest.mark.parametrize(
    "line",
    [
        "explain library:selective_scan --cost",
        "explain library:linear_recurrence --target cuda --prove",
        "doctor",
    ],
)
def test_what_is_told_fits_80_columns(command, monkeypatch, line):
    monkeypatch.setenv("COLUMNS", "80")
    _, text, _ = command(*line.split())
    assert all(
        len(row) <= 80 or " install " in row or "tvm-scan " in row for row in text.splitlines()
    )


def test_explain_says_why_the_loop_stays(command, tmp_path):
    (tmp_path / "short.py").write_text(SOURCE.replace("50", "3"))
    code, text, _ = command("explain", tmp_path / "short.py")
    assert (code, "plan      cpu/sequential()" in text) == (0, True)
    told = " ".join(text.split())
    assert "default the loop as it was written, predicted to take" in told
    assert re.search(r"the fastest of \d+ others is predicted to take [\d.]+ [num]s: ", told)
    code, text, _ = command("verify", tmp_path / "short.py")
    told = " ".join(text.split())
    assert code == 0
    assert "The plan that is used is cpu/sequential(), the loop as it was written" in told
    assert "A tree was compared instead" in told


@pytest.mark.parametrize(
    ("plan", "drawn"),
    [
        ("cpu/lanes(time_vector=64, time_runs=True)", ["vector", "scans 4 neigh", "by 4"]),
        (
            "cpu/lanes(lane_block=16, vectorize=True, transpose=True)",
            ["h0,0  h0,1  h0,2", "──▶     h0,1  h1,1  h2,1", "16 lanes in a tile"],
        ),
        (
            "cpu/three_phase(chunks=16, time_vector=16)",
            ["[chunk 5] …", "combined in order", "by 4"],
        ),
    ],
)
def test_a_tree_is_drawn_as_what_it_is_in_80_columns(command, tmp_path, plan, drawn):
    text = SOURCE.replace("(3, 50)", "(64, 512)").replace("range(3)", "range(64)")
    (tmp_path / "decay.py").write_text(text.replace("range(50)", "range(512)"))
    arguments = ["explain", tmp_path / "decay.py", "--plan", plan, "--svg", tmp_path / "tree.svg"]
    code, text, _ = command(*arguments)
    assert code == 0
    tree = text.partition("\ntree\n")[2].partition("\ndrawn: ")[0]
    assert all(word in tree for word in drawn), tree
    assert max(map(len, tree.splitlines())) <= 80
    picture = (tmp_path / "tree.svg").read_text()
    assert ("transposed" in picture) == ("transpose" in plan)
    assert ("cell 0" in picture) == ("time_vector" in plan)
    assert ("chunk 0" in picture) == ("chunks" in plan)
    assert ("distance 8" in picture) == ("time_vector" in plan), "levels that are not drawn"


def test_a_target_by_name_asks_for_no_version_of_cuda(capfd):
    assert str(make_target("cuda").attrs["arch"]) == "sm_90"
    assert capfd.readouterr().err == ""
