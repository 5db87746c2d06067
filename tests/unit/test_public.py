"""Docstrings of public names: parameters, results, errors, shapes, dtypes, and sources.

A docstring may refer to another public name for what it shares with it: "those of `cumsum`".
"""

import ast
import inspect
import re
from typing import Annotated, get_args, get_origin, get_type_hints

import pytest

torch = pytest.importorskip("torch")

from tests import ROOT  # noqa: E402
from tests.support.doors import doors, public  # noqa: E402

PUBLIC = [(door, name, value) for door, name, value in public() if callable(value)]
VALUES = {(door, name): value for door, name, value in PUBLIC}
_RETURNS = re.compile(r"^(Returns|Yields)\n-", re.MULTILINE)
_RAISES = re.compile(r"^Raises\n-", re.MULTILINE)
_FIELDS = re.compile(r"^(Parameters|Attributes)\n-", re.MULTILINE)
_REFERENCE = re.compile(r"`(?:\w+\.)*(\w+)`")
_SHAPE = re.compile(r"\([\w., +*]*\)|\bshape\b", re.IGNORECASE)
_DTYPE = re.compile(r"float|dtype|bool|integer|complex", re.IGNORECASE)
_LINK = re.compile(r"arxiv\.org/abs/(\d{4}\.\d{5})")
_SOURCE = re.compile(r"arXiv (\d{4}\.\d{5})")


def sections(doc):
    """Descriptions of the parameters and attributes of a docstring, by name."""
    found, names = {}, []
    for part in re.split(r"\n(?=\w+\n-{3,}\n)", doc):
        if not _FIELDS.match(part):
            continue
        for line in part.split("\n")[2:]:
            if line and not line.startswith(" "):
                names = [n.strip(" *") for n in line.partition(" : ")[0].split(",")]
                found |= dict.fromkeys(names, "")
            for name in names if line.startswith(" ") else ():
                found[name] += line + "\n"
    return found


def parameters_of(value):
    try:
        return inspect.signature(value).parameters
    except (TypeError, ValueError):
        return {}


def is_made_elsewhere(value, doc):
    """Whether a class is no one's to make: an exception, a value that a function returns."""
    is_data = hasattr(value, "__dataclass_fields__") or hasattr(value, "_fields")
    return inspect.isclass(value) and (
        issubclass(value, Exception) or (not is_data and re.search(r"\bmade by ``?\w+", doc))
    )


def declared_shapes(function):
    """Names of parameters, and each shape that their annotations declare, as docstrings have it."""
    for name, hint in get_type_hints(function, include_extras=True).items():
        if get_origin(hint) is Annotated:
            words = re.sub("^(any|bool|complex|floats|integers|ordered) ", "", get_args(hint)[1])
            for shape in words.replace("...", "").split("|"):
                sizes = [size.replace("+", " + ") for size in shape.split()]
                if sizes:
                    yield name, ", ".join(sizes) + "," * (len(sizes) == 1)


def referred(door, doc, known=()):
    """A docstring, then those of the public names that it refers to, and that these refer to."""
    docs = [*known, doc]
    for name in _REFERENCE.findall(doc):
        # At the same door, or one before it.
        homes = [home for home, other in VALUES if other == name and door.startswith(home)]
        other = inspect.getdoc(VALUES[homes[-1], name]) if homes else None
        if other and other not in docs:
            docs = referred(door, other, docs)
    return docs


def faults(door, value):
    """What a docstring, and those that it refers to, leave out, as text."""
    doc = inspect.getdoc(value) or ""
    if not doc or is_made_elsewhere(value, doc) or hasattr(value, "__members__"):
        return [] if doc else ["no docstring"]
    docs = referred(door, doc)
    said: dict[str, str] = {}
    for one in docs:
        for name, text in sections(one).items():
            said[name] = said.get(name, "") + text
    # A NumPy twin takes the buffers of its loop, which the loop's own page names.
    parameters = {} if value.__name__.endswith("_reference") else parameters_of(value)
    missing = [f"no parameter {name}" for name in parameters if name not in said]
    if inspect.isclass(value):
        return missing
    returns = inspect.signature(value).return_annotation
    if returns not in (None, "None") and not any(map(_RETURNS.search, docs)):
        missing.append("no Returns")
    if parameters and not any(map(_RAISES.search, docs)):
        missing.append("no Raises")
    tensors = [n for n, p in parameters.items() if "Tensor" in str(p.annotation)]
    missing += [f"no shape of {n}" for n in tensors if not _SHAPE.search(said.get(n, ""))]
    for name, shape in declared_shapes(value) if tensors else ():
        if f"({shape})" not in said.get(name, ""):
            missing.append(f"another shape of {name} than ({shape})")
    if tensors and not any(map(_DTYPE.search, docs)):
        missing.append("no dtype")
    return missing


def behind_the_doors():
    """Names of functions, classes and constants of ours that no door has."""
    trees = [
        ast.parse(path.read_text(encoding="utf-8"))
        for folder in ("tvm_scan", "schedules", "meta")
        for path in (ROOT / folder).rglob("*.py")
    ]
    names = set()
    for node in (node for tree in trees for node in tree.body):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            names.add(node.targets[0].id)
    return names - {name for _, name, _ in PUBLIC}


HIDDEN = behind_the_doors()


def hidden_names(value):
    """What the docstrings of a function, or of a class and its methods, name behind the doors.

    A word alone may mean something else; what has an underscore or a dot is one of our names.
    """
    methods = vars(value).values() if inspect.isclass(value) else ()
    shown = [m for m in methods if inspect.isfunction(m) and not m.__name__.startswith("_")]
    docs = [inspect.getdoc(each) or "" for each in (value, *shown)]
    own = {name for doc in docs for name in sections(doc)} | {m.__name__ for m in shown}
    quoted = {name for doc in docs for name in re.findall(r"`([A-Za-z_][\w.]*)[`(]", doc)}
    errors = {e for doc in docs for e in re.findall(r"^([A-Z]\w+Error)$", doc, re.MULTILINE)}
    names = errors | {name for name in quoted - own if "_" in name or "." in name}
    return sorted(name for name in names if name.rpartition(".")[2] in HIDDEN)


@pytest.mark.parametrize(("door", "name", "value"), PUBLIC, ids=[f"{d}.{n}" for d, n, _ in PUBLIC])
def test_a_docstring_names_nothing_behind_the_doors(door, name, value):
    assert not hidden_names(value)


@pytest.mark.parametrize(("door", "name", "value"), PUBLIC, ids=[f"{d}.{n}" for d, n, _ in PUBLIC])
def test_a_public_name_is_documented(door, name, value):
    assert not faults(door, value)


def test_an_algorithm_has_the_source_that_its_page_has():
    ours, found = doors()["tvm_scan.torch"], {}
    for name in ours.__all__:
        page = ROOT / "docs" / "torch" / f"{name}.md"
        if papers := set(_LINK.findall(page.read_text(encoding="utf-8")) if page.exists() else ()):
            found[name] = papers
            assert set(_SOURCE.findall(inspect.getdoc(getattr(ours, name)))) == papers, name
    assert found.keys() >= {"gla", "hgrn", "rglru", "rwkv6", "selective_scan", "ssd"}
    for name in {*ours.nn.__all__} - {"MambaState"}:
        assert _SOURCE.search(inspect.getdoc(getattr(ours.nn, name))), name


def test_what_a_docstring_leaves_out_is_said():
    def bare(x: torch.Tensor, dim: int) -> torch.Tensor:
        """Sum along an axis."""

    def whole(x: torch.Tensor, dim: int) -> torch.Tensor:
        """Sum along an axis.

        Parameters
        ----------
        x : Tensor
            (batch, length), floats.
        dim : int
            The axis.

        Returns
        -------
        Tensor
            The sum.

        Raises
        ------
        ValueError
            If there is no such axis.
        """

    assert faults("tvm_scan", bare) == [
        *("no parameter x", "no parameter dim", "no Returns", "no Raises"),
        *("no shape of x", "no dtype"),
    ]
    assert not faults("tvm_scan", whole)
