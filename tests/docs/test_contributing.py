"""What CONTRIBUTING.md shows of the source is the source."""

import ast
import re
import textwrap

from tests import ROOT

PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def without_docstrings(tree):
    """Unparse the statements of a module by name, their docstrings left out."""
    code = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            if ast.get_docstring(node) is not None:
                node.body = node.body[1:]
            code[node.name] = ast.unparse(node)
        elif isinstance(node, ast.Expr):
            code[ast.unparse(node)] = ast.unparse(node)
    return code


def test_the_operator_that_is_shown_is_one_of_ours():
    """A function with a gradient is a loop and one declaration, and this is one."""
    section = PAGE[PAGE.index("## To add a torch function") :]
    (block,) = re.findall(r"```text\n(.*?)```", section, re.DOTALL)
    shown = without_docstrings(ast.parse(textwrap.dedent(block)))
    (path,) = re.findall(r"The operator, in \[[\w/.]+\]\(([\w/.]+)\)", section)
    ours = without_docstrings(ast.parse((ROOT / path).read_text(encoding="utf-8")))
    assert len(shown) == 2, "the operator and its gradient"
    assert shown.items() <= ours.items()
