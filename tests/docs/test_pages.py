"""The code of README.md and of every page in docs/ runs.

``python`` blocks of a page share one namespace, in order, as a reader would type them. ``bash`` and
``console`` blocks run only when they ask for it, since most of them install things. An HTML
comment in front of a block decides: ``<!-- test: skip -->``, ``<!-- test: run -->``.
"""

import ast
import builtins
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import ROOT

README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("**/*.md"))]

_BLOCK = re.compile(
    r"(?:^<!--[ ]*test:[ ]*(?P<wish>run|skip)[ ]*-->[ ]*\n(?:[ ]*\n)*)?"
    r"^```(?P<language>\w+)[^\n]*\n(?P<code>.*?)^```[ ]*$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    page: Path
    language: str
    code: str
    line: int
    wish: str | None


def blocks_of(text, page=README):
    return [
        Block(
            page,
            match["language"],
            match["code"],
            text.count("\n", 0, match.start("code")) + 1,
            match["wish"],
        )
        for match in _BLOCK.finditer(text)
    ]


BLOCKS = [block for page in PAGES for block in blocks_of(page.read_text(encoding="utf-8"), page)]
PYTHON = [block for block in BLOCKS if block.language == "python" and block.wish != "skip"]
SHELL = [block for block in BLOCKS if block.language in {"bash", "console"} and block.wish == "run"]


INSTALLS = [
    b for b in BLOCKS if b.page == README and b.language == "bash" and "pip install" in b.code
]


def by_line(block):
    return f"{block.page.stem}-line{block.line}"


class Session:
    """Runs a page's python blocks in order, each once, so that any one can be tested alone."""

    def __init__(self):
        self.namespaces = {page: {"__name__": "__readme__"} for page in PAGES}
        self.done = set()

    def run_through(self, last):
        for block in PYTHON:
            if block.page == last.page and block.line <= last.line and block not in self.done:
                # The line numbers of a traceback are those of the page.
                code = compile("\n" * (block.line - 1) + block.code, str(block.page), "exec")
                exec(code, self.namespaces[block.page])
                self.done.add(block)


@pytest.fixture(scope="module")
def session():
    return Session()


# torch.export copies a tree spec in a way that it itself deprecates.
@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")
@pytest.mark.parametrize("block", PYTHON, ids=by_line)
def test_python_block(block, session, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    session.run_through(block)


def unbound(code):
    """Names that a block reads and neither binds nor imports."""
    nodes = list(ast.walk(ast.parse(code)))
    names = [node for node in nodes if isinstance(node, ast.Name)]
    bound = {node.id for node in names if not isinstance(node.ctx, ast.Load)}
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            bound.add(node.name)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, ast.alias):
            bound.add((node.asname or node.name).partition(".")[0])
    return {node.id for node in names} - bound - set(dir(builtins))


def test_the_readme_has_a_path_for_each_reader():
    """A loop, tensors, and a model: each has a heading, runs, and needs no other block."""
    page = README.read_text(encoding="utf-8")
    first_screen = page[: page.index("## Install")]
    for heading, calls in {
        "You write TensorIR": ("extract(", "parallelize(", "tvm.compile("),
        "You use PyTorch": ("import tvm_scan.torch as ts", ".backward()"),
        "You deploy a model": ("torch.export.export(", "from_exported(", "export(", "load("),
    }.items():
        line = first_screen[: first_screen.index(f"### {heading}\n")].count("\n") + 1
        block = next(b for b in PYTHON if b.page == README and b.line > line)
        assert all(call in block.code for call in calls), heading
        assert unbound(block.code) <= {"recurrence"}, heading
        imports = ("import ", "from ")
        lines = [text for text in block.code.splitlines() if text and not text.startswith(imports)]
        assert len(lines) <= 10, heading


def test_a_name_of_another_block_is_found():
    code = "import a.b as c\nfrom d import e\ndef f(x):\n    return c(x, e, len(g))\nh = f(i)\n"
    assert unbound(code) == {"g", "i"}


def commands_of(block):
    """The commands of a shell block; in a console block those after a prompt."""
    if block.language == "bash":
        return block.code
    return "\n".join(line[2:] for line in block.code.splitlines() if line.startswith("$ "))


@pytest.mark.parametrize("block", SHELL, ids=by_line)
def test_shell_block(block):
    bin_folder = str(Path(sys.executable).parent)
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands_of(block)],
        cwd=ROOT,
        env={**os.environ, "PATH": os.pathsep.join([bin_folder, os.environ.get("PATH", "")])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{block.page} line {block.line}\n{done.stdout}{done.stderr}"


def test_ci_runs_the_second_command():
    commands = [b.code.strip() for b in INSTALLS]
    assert len(commands) == 2, "README.md has two commands: one to use tvm_scan, one to test it"
    last = (ROOT / ".ci" / "run").read_text(encoding="utf-8").strip().splitlines()[-1]
    assert last == commands[1]
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_the_first_command_tests_the_version_of_torch_that_the_tests_use():
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    pinned = re.search(r'"(torch==[\d.]+)"', project)
    assert pinned is not None
    assert pinned[1] in INSTALLS[0].code


def test_blocks_are_read_with_their_wishes():
    text = (
        "<!-- test: skip -->\n\n```python\na\n```\n\n```python\nb\n```\n"
        "<!-- test: run -->\n```console\n$ c\nd\n```\n```bash\ne\n```\n"
    )
    found = blocks_of(text)
    assert [(b.language, b.wish, b.line) for b in found] == [
        ("python", "skip", 4),
        ("python", None, 8),
        ("console", "run", 12),
        ("bash", None, 16),
    ]
    assert commands_of(found[2]) == "c"
