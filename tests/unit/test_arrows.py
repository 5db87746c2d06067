"""The import arrows: core <- schedules <- meta <- the faces, and nothing back.

Imports are read from the source, also those inside functions and of ``TYPE_CHECKING``: an arrow
that is hidden from the interpreter is still an arrow for the reader.
"""

import ast
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import tvm_scan
from tests import ROOT
from tvm_scan.cli.app import COMMANDS, MODULES

FOLDERS = {"tvm_scan": "tvm_scan", "schedules": "tvm_scan.schedules", "meta": "tvm_scan.meta"}
FACES = {"relax", "torch", "cli", "browser"}

# part -> the parts it may import; the faces may import all.
ALLOWED = {
    "core": {"core"},
    "schedules": {"core", "schedules"},
    "meta": {"core", "schedules", "meta"},
}
NOT_INSTALLED = {"tests", "bench", "schedules", "meta"}
# Where torch itself may be imported inside functions; in tvm_scan.torch it may be anywhere, since
# who imports that face asks for torch.
LAZY_TORCH = {"cli", "relax"}


@dataclass(frozen=True)
class Import:
    """One imported name, absolute."""

    name: str
    line: int
    is_lazy: bool  # inside a function, or for type checkers only


def module_name(path):
    """Import name of a source file, given relative to the root of the project."""
    folder, *rest = path.with_suffix("").parts
    parts = [FOLDERS[folder], *rest]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def part_of(name):
    """core, schedules, meta, a face, or None for a module that is not ours."""
    head, *rest = name.split(".")
    if head != "tvm_scan":
        return None
    if rest and rest[0] in tvm_scan._HOMES:  # `from tvm_scan import ScanPlan` is an arrow too
        home = tvm_scan._HOMES[rest[0]]
        return part_of(home) if home != f"tvm_scan.{rest[0]}" else "core"
    return rest[0] if rest and rest[0] in {"schedules", "meta", *FACES} else "core"


def imports_of(source, name, is_package):
    """Every import of one module: statements, and import_module with a literal."""
    package = name if is_package else name.rpartition(".")[0]
    found = []

    def visit(node, is_lazy):
        if isinstance(node, ast.Import):
            found.extend(Import(alias.name, node.lineno, is_lazy) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")
                base = ".".join([*parents[: len(parents) - node.level + 1], *filter(None, [base])])
            found.extend(Import(f"{base}.{a.name}", node.lineno, is_lazy) for a in node.names)
        elif isinstance(node, ast.Call) and _called_name(node) == "import_module":
            argument = node.args[0] if node.args else None
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                found.append(Import(argument.value, node.lineno, is_lazy))
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for child in node.body:
                visit(child, True)
            for child in node.orelse:
                visit(child, is_lazy)
            return
        for child in ast.iter_child_nodes(node):
            visit(child, is_lazy or is_function)

    visit(ast.parse(source), False)
    return found


def _called_name(call):
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", None)


def violations(source, path):
    """Every arrow of one source file that points the wrong way, as text."""
    path = Path(path)
    name = module_name(path)
    part = part_of(name)
    wrong = []
    for imported in imports_of(source, name, path.stem == "__init__"):
        target = part_of(imported.name)
        top = imported.name.partition(".")[0]
        said = None
        if top in NOT_INSTALLED:
            said = "which is not installed under this name"
        elif part in ALLOWED and target is not None and target not in ALLOWED[part]:
            # tvm_scan/__init__.py names the public dozen, lazily; that is no arrow.
            said = None if name == "tvm_scan" and imported.is_lazy else f"{part} -> {target}"
        elif target == "torch" and part != "torch" and not imported.is_lazy:
            said = "tvm_scan.torch is imported inside functions only"
        elif top == "torch" and part != "torch" and not (part in LAZY_TORCH and imported.is_lazy):
            said = "torch is imported in tvm_scan.torch, or lazily in a face"
        if said is not None:
            wrong.append(f"{path}:{imported.line}: imports {imported.name}: {said}")
    return wrong


def sources():
    return sorted(p.relative_to(ROOT) for folder in FOLDERS for p in (ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("path", sources(), ids=str)
def test_arrows(path):
    wrong = violations((ROOT / path).read_text(encoding="utf-8"), path)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("tvm_scan/recurrence.py", "import tvm_scan.schedules.plan"),
        ("tvm_scan/recurrence.py", "from .schedules import plan"),
        ("tvm_scan/recurrence.py", "from . import meta"),
        ("tvm_scan/algebra/__init__.py", "from ..schedules.plan import ScanPlan"),
        ("tvm_scan/algebra/affine.py", "from tvm_scan import ScanPlan"),
        ("tvm_scan/algebra/affine.py", "def f():\n    import tvm_scan.relax"),
        ("tvm_scan/extraction/a.py", "import_module('tvm_scan.schedules')"),
        ("tvm_scan/extraction/a.py", "import importlib; importlib.import_module('tvm_scan.meta')"),
        ("tvm_scan/extraction/a.py", "if TYPE_CHECKING:\n    from tvm_scan.schedules import x"),
        ("tvm_scan/__init__.py", "from tvm_scan.schedules import ScanPlan"),
        ("tvm_scan/library/ema.py", "import torch"),
        ("tvm_scan/library/ema.py", "def f():\n    import torch"),
        ("schedules/plan.py", "from tvm_scan.meta import rule"),
        ("schedules/plan.py", "from ..meta import rule"),
        ("schedules/plan.py", "import tvm_scan.torch"),
        ("schedules/plan.py", "import schedules"),
        ("meta/rule.py", "from tests import oracle"),
        ("meta/rule.py", "import tvm_scan.cli"),
        ("tvm_scan/cli/demo.py", "import torch"),
        ("tvm_scan/cli/demo.py", "from tvm_scan import torch"),
        ("tvm_scan/relax/build.py", "import bench.run"),
    ],
)
def test_a_wrong_arrow_is_seen(path, source):
    assert violations(source, path)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("tvm_scan/algebra/affine.py", "from .base import Algebra\nimport tvm, numpy"),
        ("tvm_scan/extraction/a.py", "from tvm_scan import Recurrence, library"),
        ("tvm_scan/__init__.py", "if TYPE_CHECKING:\n    from tvm_scan.schedules import ScanPlan"),
        ("schedules/plan.py", "from tvm_scan import Recurrence\nfrom .tree import block"),
        ("schedules/__init__.py", "from .plan import ScanPlan"),
        ("meta/rule.py", "from tvm_scan.schedules import ScanPlan"),
        ("tvm_scan/torch/op.py", "import torch\nfrom tvm_scan import ScanPlan"),
        ("tvm_scan/cli/demo.py", "def f():\n    import torch\n    import tvm_scan.torch"),
        ("tvm_scan/relax/build.py", "import tvm_scan.meta\nfrom tvm_scan.schedules import x"),
    ],
)
def test_a_right_arrow_is_passed(path, source):
    assert violations(source, path) == []


#: Rooms of a folder, and modules that stand in none: each imports only what comes before it.
#: Modules of one line are one room.
ROOMS = {
    "schedules": [
        "common",
        "machine",
        "picture branch plan",
        "splice",
        "gpu.thread",
        "gpu.warp",
        "gpu.shared",
        "gpu.block",
        "gpu.walk",
        "gpu.grid",
        "gpu",
        "cpu",
        "leftover",
        "delta",
        "registry",
        "analysis",
        "choose",
        "annotated",
        "primitive",
        "nests",
        "launch",
        "verification",
        "function",
        "dispatch",
        "associative",
        "calibration",
    ],
    "meta": ["space", "measure", "store", "search"],
    # Then the commands, which are one room, and their table.
    "tvm_scan/cli": [
        "draw",
        "support",
        " ".join(sorted(MODULES.get(one, one) for one in COMMANDS)),
        "app",
    ],
    "tvm_scan/relax": [
        "calls uses",
        "findings",
        "fuse",
        "operators",
        "repairs",
        "step",
        "gradients",
        "import_torch import_onnx",
        "short",
        "passes rule",
        "pipeline tasks",
        "cubins",
        "export",
    ],
    "tvm_scan/browser": [
        "numbers",
        "program",
        "expressions",
        "loops",
        "values",
        "content",
        "model",
        "folder",
    ],
    "tvm_scan/torch": [
        "private",
        "entries",
        "store",
        "kernels.runtime kernels.devices kernels.scratch kernels.spec kernels.digest"
        " kernels.events",
        "arguments",
        "trace",
        "kernels",
        "declare",
        "ops",
        "functions",
        "compat",
        "compiled",
        "sequence",
        "distributed",
        "layer",
        "nn",
        "replacements",
        "huggingface",
    ],
}


def room_of(name):
    """Folder and room of a module of ours; the room is None for the folder's own door."""
    for folder, rooms in ROOMS.items():
        package = package_of(folder)
        if name != package and not name.startswith(package + "."):
            continue
        inner = name.removeprefix(package).lstrip(".")
        # The most rooms deep that there is: gpu.thread before gpu.
        homes = {one: room for room in rooms for one in room.split()}
        found = [one for one in homes if inner == one or inner.startswith(one + ".")]
        return folder, homes[max(found, key=len)] if found else None
    return None, None


def package_of(folder):
    """Import name of a folder that has rooms."""
    return FOLDERS.get(folder) or folder.replace("/", ".")


def wrong_rooms(source, path):
    """Every import of one source file that leads to a room above its own, as text."""
    name = module_name(Path(path))
    folder, room = room_of(name)
    if room is None:
        return []
    order = ROOMS[folder]
    wrong = []
    for imported in imports_of(source, name, Path(path).stem == "__init__"):
        other, its = room_of(imported.name)
        if other == folder and its is not None and order.index(its) > order.index(room):
            wrong.append(f"{path}:{imported.line}: {room} imports {imported.name} of {its}")
    return wrong


@pytest.mark.parametrize("folder", ROOMS)
def test_rooms(folder):
    paths = sorted(p.relative_to(ROOT) for p in (ROOT / folder).rglob("*.py"))
    wrong = [w for p in paths for w in wrong_rooms((ROOT / p).read_text(encoding="utf-8"), p)]
    assert not wrong, "\n".join(wrong)


def test_every_module_is_in_a_room_that_has_a_door():
    for folder, rooms in ROOMS.items():
        for path in (ROOT / folder).rglob("*.py"):
            name = module_name(path.relative_to(ROOT))
            assert name == package_of(folder) or room_of(name)[1], f"{path}: in no room of {rooms}"
            door = path.parent / "__init__.py"
            assert ast.get_docstring(ast.parse(door.read_text(encoding="utf-8"))), door


def test_every_module_is_linted():
    """A folder that shares its name with one that is left out is none of those."""
    command = [
        sys.executable,
        "-m",
        "ruff",
        "check",
        "--show-files",
        *(ROOT / one for one in ROOMS),
    ]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    ours = (p for one in ROOMS for p in (ROOT / one).rglob("*.py"))
    missing = {str(p) for p in ours}
    missing -= set(shown.splitlines())
    assert not missing, sorted(missing)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("schedules/common/ir.py", "from tvm_scan.schedules.plan import ScanPlan"),
        ("schedules/gpu/thread/position.py", "from tvm_scan.schedules.gpu.lanes import Lanes"),
        ("schedules/gpu/block/tile.py", "def f():\n    import tvm_scan.schedules.gpu.grid.carries"),
        ("schedules/choose/default.py", "from tvm_scan.schedules.primitive import build"),
        ("meta/store/files.py", "from tvm_scan.meta.search.loop import Loop"),
        ("tvm_scan/cli/draw/page.py", "from tvm_scan.cli.support.terminal import visible"),
        ("tvm_scan/cli/support/load.py", "from tvm_scan.cli import explain"),
        ("tvm_scan/relax/fuse/merge.py", "from tvm_scan.relax.pipeline import get_pipeline"),
        (
            "tvm_scan/relax/import_onnx/scan.py",
            "def f():\n    import tvm_scan.relax.passes",
        ),
        ("tvm_scan/torch/ops/affine.py", "from tvm_scan.torch.functions.linear import x"),
        ("tvm_scan/torch/trace/lowered.py", "from tvm_scan.torch.kernels.cache import run_kernel"),
    ],
)
def test_a_wrong_room_is_seen(path, source):
    assert wrong_rooms(source, path)
