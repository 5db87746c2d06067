"""One meaning for each word, as CONTRIBUTING.md has them: in code, messages and pages.

A word with several meanings in English has one of them here. `RULES` is the only table: what else
the word may be part of (idioms, names of TVM's and torch's), and the folders whose subject it is.
"""

import ast
import re
from dataclasses import dataclass

import pytest

from tests import ROOT
from tests.docs.links import pages

PRODUCT = [
    path
    for folder in ("tvm_scan", "schedules", "meta")
    for path in sorted((ROOT / folder).rglob("*.py"))
]
#: History, the table of words itself, and what a tool prints.
OTHERS = ("CHANGELOG.md", "CONTRIBUTING.md", "tests/support/cusim/README.md")
PAGES = [page for page in pages(ROOT) if str(page.relative_to(ROOT)) not in OTHERS]
TEXTS = {
    str(path.relative_to(ROOT)): re.sub(r"\s+#?:?\s*", " ", path.read_text(encoding="utf-8"))
    for path in (*PRODUCT, *PAGES)
}
#: Characters around a word in which an idiom is looked for.
AROUND = 60


@dataclass(frozen=True)
class Rule:
    """A word: its forms, the uses that are another word's, and the files that are about it."""

    forms: str
    uses: str
    files: tuple[str, ...] = ()

    def broken(self):
        """Yield every use with another meaning, with its file."""
        word, allowed = re.compile(self.forms, re.IGNORECASE), re.compile(self.uses, re.IGNORECASE)
        for name, text in TEXTS.items():
            if name.startswith(self.files):
                continue
            spans = [match.span() for match in allowed.finditer(text)]
            for match in word.finditer(text):
                if not any(first <= match.start() < last for first, last in spans):
                    around = text[max(0, match.start() - AROUND) : match.end() + AROUND]
                    yield f"{name}: .. {around} .."


RULES = {
    # An index, the position of a thread, a device, a memory map.
    "place": Rule(
        r"(?<![a-z])places?(?![a-z])",
        r"(in|out)[ _-](of[ -])?place|in (the|its|their|one|this) place|the last place|one place"
        r"|takes? (the|its|their) place|place it takes|change places|test_places",
    ),
    # Transpose, parity, round, rotate: what happens. Sides of a measurement take turns.
    "turn": Rule(
        r"(?<![a-z])turn(s|ed|ing)?(?![a-z])",
        r"in[ _]turns?|takes? turns|(its|of) turn\b|turn(s|ed)? (on|off|around|that off)"
        r"|turns (the cache off|comparisons around)|turns?\b[^;|]{0,160}? in(to|side)\b"
        r"|turned\s+into|support/turns|carry, turn\b|turn\[",
    ),
    # The kernels of the schedules ``lanes`` on a GPU and ``delta_walk``, where they are meant.
    "walk": Rule(
        r"(?<![a-z])walk(s|ed|ing)?(?![a-z])",
        r"structural_walk|ast\.walk|WalkResult|delta[_.]walk|gpu[/.]walk|walk\.counts"
        r"|walk_(layout|tiles)|_walks_chunks|a walk\b|walks over|task walks time|of a walk do",
        (
            "schedules/gpu/",
            "schedules/delta/",
            "tvm_scan/loops/delta",
            "tvm_scan/torch/ops/delta",
            "schedules/common/state_split.py",
            "docs/cuda/",
        ),
    ),
    # A decision of GPU plans (buffers of a tile), and to put a tile into shared memory.
    "stage": Rule(
        r"(?<![a-z])stages?(?![a-z])",
        r"stages=\d|\"stage_\{",
        ("schedules/gpu/", "schedules/plan.py", "docs/cuda/"),
    ),
    # Of axes under ``vmap``, of constants, and of factors into an exponent; steps are reduced.
    "fold": Rule(
        r"(?<![a-z])fold(s|ed|ing)?(?![a-z])",
        r"fold[^.]{0,40}(ax[ei]s|constant|division|exponent)|ax[ei]s[^.]{0,40}fold|constants? fold"
        r"|folded_bits|overflow=\"fold\"|elements\(\"fold\"\)",
        (
            "tvm_scan/algebra/literal.py",
            "tvm_scan/torch/declare/",
            "tvm_scan/torch/functions/",
            "tvm_scan/torch/ops/",
            "schedules/common/invariants.py",
            "schedules/cpu/lane_block.py",
            "schedules/gpu/walk/exponentials.py",
        ),
    ),
    # An independent recurrence; a vector has cells and a warp threads.
    "lane": Rule(
        r"lanes? of (a|the|one|each|such a) (vector|warp|simd)|(vector|simd|warp)('s)? lanes?\b"
        r"|to one lane\b",
        r"lanes? of (a|one) vector operation|lanes of a vector lie a row apart|items_per_\w+"
        r"|copies\.lanes",
    ),
}


@pytest.mark.parametrize("word", RULES)
def test_a_word_has_one_meaning(word):
    assert not list(RULES[word].broken())


#: Nouns that say nothing of what a variable holds. ``found`` may be what a message says was found
#: instead of what was expected, and ``one`` the number.
BARE = ("found", "given", "kept", "made", "one", "own", "place", "places", "turn", "turns", "walks")
NUMBER = re.compile(r"\bone\b[^=]*= .*(\b1\b|_i\(|ones_like)|n in \(0, 1\)|def one\(")
SAID = re.compile(r"expected|check\(|_wrong\(|found: str|Error\(")


def bindings(tree):
    """Yield the name and the node of whatever a module names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr, node
        elif isinstance(node, ast.arg):
            yield node.arg, node
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name, node


def nouns(text):
    """Names of a module that say nothing, with their lines."""
    tree, lines = ast.parse(text), text.splitlines()
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    for name, node in bindings(tree):
        if name not in BARE:
            continue
        around = [f for f in functions if f.lineno <= node.lineno <= f.end_lineno]
        inside = lines[around[-1].lineno - 1 : around[-1].end_lineno] if around else lines
        said = name == "found" and SAID.search("\n".join(inside))
        if not said and not (name == "one" and NUMBER.search(lines[node.lineno - 1])):
            yield f"{node.lineno} {name}"


def test_a_variable_is_named_for_what_it_holds():
    vague = {
        f"{path.relative_to(ROOT)}:{noun}"
        for path in PRODUCT
        for noun in nouns(path.read_text(encoding="utf-8"))
    }
    assert not vague


@pytest.mark.parametrize(
    "text", ["made = build()", "for one in series: pass", "def f(own): return own", "self.kept = 1"]
)
def test_a_name_that_says_nothing_is_found(text):
    assert list(nouns(text))
