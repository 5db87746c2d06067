"""``load``: run an exported model with tvm_ffi and the TVM runtime alone.

This module imports neither TVM nor its compiler, so that a machine that only runs a model needs
only the runtime library of TVM (3 MB), tvm_ffi and this package.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import platform
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tvm_scan.artifact_inputs import DEVICE_TYPES, ArtifactError, as_input

__all__ = ["ArtifactError", "Model", "load"]

#: Version of the manifest; a reader takes its own only.
FORMAT = 1
MANIFEST = "manifest.json"
#: What `load` and `Model` read of a manifest.
_FIELDS: dict[str, type] = {
    **dict.fromkeys(("library", "sha256", "machine", "device"), str),
    **dict.fromkeys(("versions", "functions"), dict),
}
#: Whose versions a library is made for.
_VERSIONED = ("apache-tvm", "apache-tvm-ffi")
#: Pooled memory of TVM's virtual machine.
_POOLED = 2


def sha256_of(path: Path) -> str:
    """Hex digest of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def load(folder: str | Path, runtime: str | Path | None = None) -> Model:
    """Load what ``tvm_scan.relax.export`` wrote.

    Parameters
    ----------
    folder : path
        The folder with the manifest and the library.
    runtime : path, optional
        ``libtvm_runtime.so``; that of the installed ``apache-tvm`` if not given, which is not
        imported.

    Returns
    -------
    Model

    Raises
    ------
    ArtifactError
        If the manifest is missing or of another format, the library is not the one that was
        exported, or was made for other versions or another machine; nothing of it has run then.
    """
    if not isinstance(folder, str | os.PathLike):
        raise ArtifactError(
            f"load: expected the path of a folder, got {type(folder).__name__}; give the one that "
            "tvm_scan.relax.export wrote"
        )
    folder = Path(folder)
    manifest = _read(folder)
    library = folder / manifest["library"]
    _check(manifest, library)
    import tvm_ffi

    path = Path(runtime) if runtime is not None else _installed_runtime()
    if not path.is_file():
        raise ArtifactError(
            f"load: expected TVM's runtime library, found nothing at {path}; "
            "pass the path of libtvm_runtime.so as runtime"
        )
    libraries = [path]
    if manifest["device"] == "cuda":
        libraries.append(path.with_name(path.name.replace("runtime", "runtime_cuda")))
    for shared in libraries:
        try:
            ctypes.CDLL(str(shared), ctypes.RTLD_GLOBAL)
        except OSError as error:
            raise ArtifactError(
                f"load: expected {shared.name} to load, got: {error}; install what it needs"
            ) from error
    _check_kernels(manifest)
    machine = tvm_ffi.load_module(str(library))["vm_load_executable"]()
    devices = [(DEVICE_TYPES[manifest["device"]], 0, _POOLED)]
    if manifest["device"] != "cpu":
        devices.append((DEVICE_TYPES["cpu"], 0, _POOLED))  # shapes are computed there
    machine["vm_initialization"](*(number for device in devices for number in device))
    return Model(machine, manifest)


def _read(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    if not path.is_file():
        raise ArtifactError(
            f"load: expected {MANIFEST} in {folder}, found none; "
            "give the folder that tvm_scan.relax.export wrote"
        )
    try:
        manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        found = manifest["format"]
    except (ValueError, KeyError, TypeError, OSError, RecursionError) as error:
        raise ArtifactError(
            f"load: expected a manifest as JSON in {path}, got {type(error).__name__}: {error}; "
            "export the model again"
        ) from error
    if found != FORMAT:
        raise ArtifactError(
            f"load: expected a manifest of format {FORMAT}, got {found}; export the model again "
            "with this version of tvm_scan"
        )
    unusable = _unusable(manifest)
    if unusable:
        raise ArtifactError(
            f"load: expected a whole manifest in {path}, got one whose "
            f"{', '.join(unusable)} cannot be used; export the model again"
        )
    name = manifest["library"]
    if name in ("", "..") or Path(name).name != name:
        raise ArtifactError(
            f"load: expected the name of a library in {folder}, got {name!r} in its manifest; "
            "export the model again"
        )
    return manifest


def _unusable(manifest: dict[str, Any]) -> list[str]:
    """Names of what is missing in a manifest, or of another kind than `load` and `Model` read."""
    wrong = [key for key in _FIELDS if not isinstance(manifest.get(key), _FIELDS[key])]
    if wrong:
        return wrong
    if manifest["device"] not in DEVICE_TYPES:
        return ["device"]
    if not all(isinstance(manifest["versions"].get(name), str) for name in _VERSIONED):
        return ["versions"]
    return [f"inputs of {n}" for n, f in manifest["functions"].items() if not _has_inputs(f)]


def _has_inputs(function: Any) -> bool:
    entries = function.get("inputs") if isinstance(function, dict) else None
    return isinstance(entries, list) and all(
        isinstance(entry, dict)
        and isinstance(entry.get("name"), str)
        and isinstance(entry.get("dtype"), str)
        and isinstance(entry.get("shape"), list)
        and all(isinstance(extent, int | str) for extent in entry["shape"])
        for entry in entries
    )


def _check(manifest: dict[str, Any], library: Path) -> None:
    def differs(what: str, expected: Any, found: Any, fix: str) -> ArtifactError:
        return ArtifactError(f"load: expected {what} {expected}, found {found}; {fix}")

    if not library.is_file():
        raise differs("the library", library, "nothing", "copy the whole folder")
    digest = sha256_of(library)
    if digest != manifest["sha256"]:
        fix = "copy the folder again, or export the model again"
        raise differs("the library with sha256", manifest["sha256"], digest, fix)
    machine = platform.machine()
    if manifest["machine"] != machine:
        fix = f"export it for this machine, or run it on {manifest['machine']}"
        raise differs("a machine of kind", manifest["machine"], machine, fix)
    if library.suffix != ".so":
        fix = f"link its object files with a linker for {manifest['machine']}"
        raise differs("a shared library", "model.so", library.name, fix)
    for name in _VERSIONED:
        expected, found = manifest["versions"][name], _version(name)
        if found.split(".")[:2] != expected.split(".")[:2]:
            fix = f"install {name}=={expected}, or export the model with {found}"
            raise differs(name, expected, found, fix)


def _check_kernels(manifest: dict[str, Any]) -> None:
    """Kernels that were exported as text need TVM's compiler callback, which TVM registers."""
    import tvm_ffi

    callback = "tvm_callback_cuda_compile"
    if manifest.get("kernel_format") != "cuda":
        return
    if tvm_ffi.get_global_func(callback, allow_missing=True) is None:
        raise ArtifactError(
            "load: expected compiled CUDA kernels, found their text, and no compiler; export the "
            "model where nvcc is on the PATH, or import tvm before loading it"
        )


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "none"


def _installed_runtime() -> Path:
    spec = find_spec("tvm")
    if spec is None or spec.origin is None:
        raise ArtifactError(
            "load: expected TVM's runtime library, found no apache-tvm installed; "
            "install it, or pass the path of libtvm_runtime.so as runtime"
        )
    return Path(spec.origin).parent / "lib" / "libtvm_runtime.so"


class Model:
    """A loaded model, made by ``load``; its functions are called by name with DLPack tensors.

    Attributes
    ----------
    manifest : dict
        What the folder says about it: functions, scans and their plans, versions, target.
    """

    def __init__(self, machine: Any, manifest: dict[str, Any]) -> None:
        self._machine, self.manifest = machine, manifest

    def __call__(self, *tensors: Any, function: str = "main", **named: Any) -> Any:
        """Run one function.

        Parameters
        ----------
        *tensors
            NumPy arrays, torch tensors or whatever else speaks DLPack, one per input: contiguous,
            on the model's device. Those that are read-only, or do not begin at a multiple of 64
            bytes, are copied.
        function : str
            Which; see ``manifest["functions"]``.
        **named
            The inputs behind those, by their names.

        Returns
        -------
        tvm_ffi.Tensor or sequence of them
            What the function returns.

        Raises
        ------
        ArtifactError
            If the inputs are not those that the manifest names.
        """
        functions = self.manifest["functions"]
        if not isinstance(function, str) or function not in functions:
            raise ArtifactError(
                f"run: expected one of {', '.join(functions)}, got {function}; choose one of them"
            )
        inputs = functions[function]["inputs"]
        names = [entry["name"] for entry in inputs]
        behind = [name for name in names[len(tensors) :] if name in named]
        if len(tensors) + len(behind) != len(inputs) or len(behind) != len(named):
            others = [name for name in named if name not in behind]
            found = f"{len(tensors)}" + "".join(f" and {name}" for name in [*behind, *others])
            raise ArtifactError(
                f"run: expected {len(inputs)} inputs ({', '.join(names)}), got {found}; pass one "
                "each"
            )
        sizes: dict[str, int] = {}
        arguments = []
        every = (*tensors, *(named[name] for name in behind))
        for entry, tensor in zip(inputs, every, strict=True):
            arguments.append(as_input(tensor, entry, sizes, self.manifest["device"]))
        return self._machine[function](*arguments)
