"""The folder of a page: kernels, their description, the loops, and the files that run them."""

from __future__ import annotations

import json
from importlib import metadata
from importlib.resources import files
from pathlib import Path
from typing import Any

from tvm.target import Target

from tvm_scan import __version__
from tvm_scan._files import check_folder, write_file
from tvm_scan.browser.content import Content, Operand
from tvm_scan.browser.loops import module_of

#: Of the manifest.
FORMAT = 1
MANIFEST, LOOPS, CONSTANTS, KERNELS = "manifest.json", "loops.js", "constants.bin", "kernels"
_STATIC = ("scan.js", "scan.d.ts", "page.js")
#: A line of a kernel, and what a device must be asked for.
_FEATURES = {"enable f16;": "shader-f16", "enable subgroups;": "subgroups"}
#: Bytes at multiples of which constants begin.
_ALIGNMENT = 8


def write_folder(folder: Path, content: Content, target: Target, plan: str, index: str) -> Path:
    """Write a page's folder.

    Parameters
    ----------
    folder : Path
        Made if it is not there.
    content : Content
        What it is to hold.
    target : tvm.target.Target
        Of the kernels.
    plan : str
        Of the recurrences.
    index : str
        HTML of the page.

    Returns
    -------
    Path
        The manifest.

    Raises
    ------
    WriteError
        If the folder cannot be made or written to.
    """
    check_folder(folder, "a page")
    manifest, constants = manifest_of(content, target, plan)
    (folder / KERNELS).mkdir(parents=True, exist_ok=True)
    for old in (folder / KERNELS).glob("*.wgsl"):
        old.unlink()
    for program in content.functions.values():
        for kernel in program.kernels.values():
            write_file(folder / KERNELS / f"{kernel.name}.wgsl", kernel.source)
    write_file(folder / LOOPS, module_of(list(content.loops.values())))
    (folder / CONSTANTS).unlink(missing_ok=True)
    if constants:
        write_file(folder / CONSTANTS, constants)
    for name in _STATIC:
        source = files("tvm_scan.browser").joinpath(f"files/{name}")
        write_file(folder / name, source.read_text(encoding="utf-8"))
    write_file(folder / "index.html", index)
    write_file(folder / MANIFEST, json.dumps(manifest, indent=1) + "\n")
    return folder / MANIFEST


def manifest_of(content: Content, target: Target, plan: str) -> tuple[dict[str, Any], bytes]:
    """Return a page's manifest, as scan.d.ts has it, and the bytes of its constants.

    Parameters
    ----------
    content : Content
        What the page holds.
    target : tvm.target.Target
        Of the kernels.
    plan : str
        Of the recurrences.

    Returns
    -------
    dict
        As JSON takes it.
    bytes
        All constants, one after the other.
    """
    constants = bytearray()
    arrays = [_array(array, constants) for array in content.arrays]
    kernels = {
        kernel.name: {
            "file": f"{KERNELS}/{kernel.name}.wgsl",
            "entry": kernel.name,
            "parameters": list(kernel.parameters),
        }
        for program in content.functions.values()
        for kernel in program.kernels.values()
    }
    functions = {
        name: {"parameters": _parameters(program.parameters), "steps": list(program.steps)}
        for name, program in content.functions.items()
    }
    loops = {
        name: {"parameters": _parameters(loop.parameters)} for name, loop in content.loops.items()
    }
    manifest = {
        "format": FORMAT,
        "name": content.name,
        "target": str(target),
        "versions": {"tvm_scan": __version__, "apache-tvm": metadata.version("apache-tvm")},
        "plan": plan,
        "families": content.families,
        "features": _features(content),
        "sizes": content.sizes,
        "time": content.time,
        "length": content.length,
        "bound_steps": content.bound_steps,
        "arrays": arrays,
        "constants": CONSTANTS if constants else None,
        "kernels": kernels,
        "functions": functions,
        "loops": loops,
        "scan": content.scan,
        "loop": content.loop,
    }
    return manifest, bytes(constants)


def _features(content: Content) -> list[str]:
    texts = [k.source for program in content.functions.values() for k in program.kernels.values()]
    return [name for line, name in _FEATURES.items() if any(line in text for text in texts)]


def _parameters(arrays: tuple[Any, ...]) -> list[dict[str, Any]]:
    return [{"name": a.name, "dtype": a.dtype, "shape": list(a.shape)} for a in arrays]


def _array(array: Operand, constants: bytearray) -> dict[str, Any]:
    (entry,) = _parameters((array.array,))
    entry |= {"read": array.read, "written": array.written}
    if array.written:
        entry["bound"] = array.bound
    if array.constant is not None:
        constants += bytes(-len(constants) % _ALIGNMENT)
        entry["offset"] = len(constants)
        constants += array.constant.tobytes()
    elif array.span is not None:
        entry["values"] = dict(zip(("low", "high"), array.span, strict=True))
    return entry
