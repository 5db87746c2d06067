"""The first line of every docstring has one form: a noun phrase or an imperative, one sentence.

"Whether a loop is a lane." and "Of the buffers." are halves of sentences, whose other half a reader
has to guess; "Return whether a loop is a lane." and "Dtypes of the buffers." say it.
"""

import ast

import pytest

from tests import ROOT
from tests.unit.test_arrows import sources

LIMIT = 100  # columns, as ruff has it
QUESTIONS = "what whether which who whose whom how where when why if"
PREPOSITIONS = """
about above across after against along amid among around as at before behind below beneath beside
besides between beyond by despite during except for from in inside into like near of off on onto out
outside over past per since than through throughout to toward towards under until up upon via with
within without
"""
# Who reads one docstring has not read the one before.
CONTINUATIONS = "also and because but else likewise or so that their then these those while"
SAME = "the same "


def faults(line):
    """What is wrong with the first line of a docstring, as text."""
    said = []
    first = line.split()[0].strip(",.:;").lower() if line.split() else ""
    if first in QUESTIONS.split():
        said.append(f"begins with {first!r}, a question")
    elif first in PREPOSITIONS.split():
        said.append(f"begins with {first!r}, a preposition")
    elif first in CONTINUATIONS.split() or line.lower().startswith(SAME):
        said.append("goes on from something that was said elsewhere")
    if not line.endswith("."):
        said.append("does not end with a full stop")
    return said


def violations(source, path):
    """Every first line of a source file that has another form: file, line, faults and text."""
    rows, wrong = source.splitlines(), []
    for node in ast.walk(ast.parse(source)):
        kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        said = ast.get_docstring(node) if isinstance(node, kinds) else None
        if said is None:
            continue
        number, line = node.body[0].lineno, said.partition("\n")[0]
        found = faults(line)
        if len(rows[number - 1]) > LIMIT:
            found.append(f"is longer than {LIMIT} columns")
        wrong += [f"{path}:{number}: {fault}: {line}" for fault in found]
    return wrong


def test_first_lines():
    wrong = []
    for path in sources():
        wrong += violations((ROOT / path).read_text(encoding="utf-8"), path)
    wanted = "expected a noun phrase or an imperative, as 'Return whether ...' or 'Cost of ...'"
    assert not wrong, "\n".join([wanted, *wrong])


@pytest.mark.parametrize(
    "line",
    [
        "Whether a loop is a lane.",
        "What a plan costs.",
        "Which loop is time, and which are lanes.",
        "How often a variable is read.",
        "Where a lane is cut.",
        "When the value is free of the carry.",
        "Who is measured again.",
        "Why a step is not in a family.",
        "Of the buffers.",
        "With more of some.",
        "By what a prediction is multiplied.",
        "In shared memory.",
        "As ``combine``.",
        "As: the inner family.",
        "Before the first tile.",
        "The same with tiles in shared memory.",
        "Also the inputs.",
        "Those that registers cannot hold.",
        "A sentence without its end",
        "A sentence that ends on",
        "",
    ],
)
def test_a_wrong_first_line_is_seen(line):
    assert faults(line)


@pytest.mark.parametrize(
    "line",
    [
        "Return whether a loop is a lane.",
        "Cost of a plan on a CPU.",
        "The loops of a nest, whatever they are.",
        "Inputs of a model.",
        "``of`` as a number.",
        "The samest line of all.",
        "Whole lines of memory.",
        "Upsweep of a tree.",
    ],
)
def test_a_right_first_line_passes(line):
    assert not faults(line)


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ('"""What it is.\n\nMore.\n"""', 1),
        ('def f():\n    """Whether it is."""', 2),
        ('async def f():\n    """Whether it is."""', 2),
        ('class A:\n    @property\n    def f(self):\n        r"""Of it."""', 4),
        ('class A:\n    """\n    How it is.\n    """', 2),
        ('def f():\n    def g():\n        """The sum"""', 3),
        (f'"""The sum{" of it" * 20}."""', 1),
    ],
)
def test_a_wrong_docstring_is_seen(source, line):
    (wrong,) = violations(source, "a.py")
    assert wrong.startswith(f"a.py:{line}: ")


def test_other_text_passes():
    source = '"""Sum of it.\n\nWhat comes after it\n"""\n"What it is"\nx = "Of it"\ndef f(): pass\n'
    assert not violations(source, "a.py")
