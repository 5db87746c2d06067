"""Pages name what is public: the names in ``__all__`` of the doors, and nothing behind them."""

import ast
import re

import pytest

from tests import ROOT
from tests.docs.links import pages
from tests.docs.test_pages import blocks_of
from tests.support.doors import doors, fault_of

OURS = ("tvm_scan", "schedules", "meta")
PAGES = pages(ROOT)
_DOTTED = re.compile(r"(?<![\w./])tvm_scan(?:\.[A-Za-z_]\w*)+")
_SHORT = re.compile(r"(?<![\w./])ts((?:\.[A-Za-z_]\w*)+)")


def names_in(code):
    """Our dotted names that a block imports, or reads from what it imported as another name."""
    tree, found, aliases = ast.parse(code), [], {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
            aliases |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            full = {
                alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names
            }
            found += full.values()
            aliases |= full
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name | ast.Attribute):
            head, _, rest = ast.unparse(node).partition(".")
            if aliases.get(head) in doors() and "(" not in rest:
                found.append(f"{aliases[head]}.{rest}")
    return [name for name in found if name.partition(".")[0] in OURS]


def faults(text):
    """What a page names that no door has."""
    blocks = [block.code for block in blocks_of(text) if block.language == "python"]
    named = [name for code in blocks for name in names_in(code)]
    named += _DOTTED.findall(text)
    named += [f"tvm_scan.torch{rest}" for rest in _SHORT.findall(text)]
    return sorted({said for name in named if (said := fault_of(name))})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_names_what_a_door_has(page):
    assert not faults(page.read_text(encoding="utf-8"))


def test_every_door_has_what_it_names():
    for name, module in doors().items():
        assert module.__doc__, name
        assert len(set(module.__all__)) == len(module.__all__), name
        assert not [one for one in module.__all__ if not hasattr(module, one)], name


def passes_on_nothing(path):
    """Whether a module has an ``__all__`` of its own names alone."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    imported = {alias.asname or alias.name for node in imports for alias in node.names}
    lists = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    return bool(lists) and imported.isdisjoint(lists[0])


def test_behind_the_doors_an_underscore_says_what_is_private():
    """A list of a module's own names says it twice, and the two had drifted apart in 50 files."""
    shown = {module.__file__ for module in doors().values()}
    behind = [p for folder in OURS for p in (ROOT / folder).rglob("*.py") if str(p) not in shown]
    assert not [str(path.relative_to(ROOT)) for path in behind if passes_on_nothing(path)]


@pytest.mark.parametrize(
    "text",
    [
        "```python\nfrom tvm_scan.torch.functions.linear import linear_recurrence\n```\n",
        "```python\nfrom tvm_scan.torch import functions\n```\n",
        "```python\nimport tvm_scan.meta.store.replay\n```\n",
        "```python\nfrom schedules import ScanPlan\n```\n",
        "```python\nimport tvm_scan.torch as some\nsome.functions.linear(1)\n```\n",
        "`tvm_scan.schedules.dispatch.dispatch_by_length(func)` holds several plans.",
        "`ts.compile(func)` compiles.",
    ],
)
def test_a_name_behind_a_door_is_found(text):
    assert faults(text)


def test_a_name_at_a_door_is_passed():
    text = "`tvm_scan.torch.compile_primfunc(..)`, `ts.nn.Mamba`, tvm_scan/torch/nn.py\n"
    code = "import tvm_scan.torch as ts\nfrom tvm_scan.torch import nn\nts.cummax(x, 1).values\n"
    assert not faults(f"{text}```python\n{code}nn.LRU\n```\n")
