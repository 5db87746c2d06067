"""``tvm.compile`` for what tests call and do not look into: results are kept on disk."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm.target import Target

from tests.support import cusim
from tests.support.cusim import _toolchain
from tests.support.environment import cache_folder
from tests.support.tiers import drawn

__all__ = ["compile_cached", "emit_cached", "few_checks", "key_of", "sources_of"]

_SOURCES = "sources.json"
_LIBRARY = "built.so"


class _IsTextError(Exception):
    """Something to be linked is no machine code."""


class Kept(tvm.runtime.Executable):
    """An executable whose machine code lies in a library on disk.

    Attributes
    ----------
    sources : list of str
        The CUDA sources of its kernels, which a loaded module has no more.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(tvm.runtime.load_module(str(folder / _LIBRARY)))
        self.sources: list[str] = json.loads((folder / _SOURCES).read_text())


def compile_cached(
    func_or_mod: tvm.tirx.PrimFunc | tvm.IRModule,
    target: Target | str,
    relax_pipeline: Callable[[tvm.IRModule], tvm.IRModule] | None = None,
    *,
    plainly: bool = False,
) -> Any:
    """Compile a program, unless what TVM makes of it is known.

    Parameters
    ----------
    func_or_mod : PrimFunc or IRModule
        What to compile.
    target : Target or str
        What for. CUDA is the simulated device, or compiled anew.
    relax_pipeline : callable, optional
        Passes on a module of Relax. They run each time: what they leave is what is looked up.
    plainly : bool
        Whether LLVM may leave its optimisations out, which take most of the time: it does so for
        seven programs of eight, for none in the full tier. For tests of what our passes make of
        many loops; those of arithmetic (overflow, rounding) see the code that users run. Nothing
        on a GPU.

    Returns
    -------
    tvm.runtime.Executable
        To be called. A test that looks at its modules or exports it calls ``tvm.compile``.
    """
    target = Target(target) if isinstance(target, str) else target
    if relax_pipeline is not None:
        with target:
            func_or_mod = relax_pipeline(func_or_mod)
    on_cpu = str(target.kind.name) == "llvm"
    if not on_cpu and (not cusim.is_simulated() or cusim.is_rewritten()):
        return _compile(func_or_mod, target)
    if plainly and on_cpu and not drawn(f"plainly {_hash(func_or_mod)}", 8):
        target = Target({**target.export(), "opt-level": 0})
    with few_checks(_hash(func_or_mod)):
        folder = _folder() / key_of(func_or_mod, target)
        if not folder.is_dir():
            executable = _compile(func_or_mod, target)
            try:
                _toolchain.build_once(folder, functools.partial(_write, executable))
            except _IsTextError:
                return executable
    os.utime(folder)
    kept = Kept(folder)
    for source in kept.sources:
        cusim.build(source)  # messages are about the source built last
    return kept


def emit_cached(func_or_mod: tvm.tirx.PrimFunc | tvm.IRModule, target: Target) -> list[str]:
    """Return the CUDA sources of a program that is not run.

    No compiler of CUDA reads them: that of the simulated device takes longer than all else.

    Parameters
    ----------
    func_or_mod : PrimFunc or IRModule
        What to emit.
    target : Target
        Of CUDA.

    Returns
    -------
    list of str
        As `sources_of` of what `compile_cached` makes.
    """
    if not cusim.is_simulated() or cusim.is_rewritten():
        return sources_of(compile_cached(func_or_mod, target))
    with few_checks(_hash(func_or_mod)):
        key = key_of(func_or_mod, target)
        built, path = _folder() / key / _SOURCES, _folder() / f"{key}.json"
        if not path.exists():
            if built.exists():
                text = built.read_text()
            else:
                with cusim.unbuilt():
                    text = json.dumps(sources_of(_compile(func_or_mod, target)))
            _toolchain.publish(text.encode(), path)
    os.utime(path)
    sources: list[str] = json.loads(path.read_text())
    return sources


def _hash(func_or_mod: tvm.tirx.PrimFunc | tvm.IRModule) -> str:
    """The same in every process."""
    return str(tvm_ffi.structural_hash(func_or_mod))


@contextlib.contextmanager
def few_checks(what: str) -> Iterator[None]:
    """Leave TVM's checks of arguments out of seven programs of eight, of none in the full tier.

    They are longer than most kernels: a third of the time that LLVM takes.

    Parameters
    ----------
    what : str
        Names the program.
    """
    context = tvm.transform.PassContext.current()
    if drawn(what, 8):
        yield
        return
    with tvm.transform.PassContext(
        opt_level=context.opt_level,
        required_pass=context.required_pass,
        disabled_pass=context.disabled_pass,
        config={**context.config, "tirx.disable_assert": True},
    ):
        yield


def key_of(func_or_mod: tvm.tirx.PrimFunc | tvm.IRModule, target: Target) -> str:
    """Return a hash of all that the outcome depends on: program, target, options, compilers."""
    context = tvm.transform.PassContext.current()
    parts = [
        tvm.ir.save_json(func_or_mod),
        json.dumps(target.export(), sort_keys=True, default=str),
        repr((context.opt_level, str(context.config), list(context.required_pass))),
        str(context.disabled_pass),
        _compilers(),
    ]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def sources_of(built: Any) -> list[str]:
    """CUDA sources of an executable or a module, at whatever depth."""
    if isinstance(built, Kept):
        return built.sources
    module = built.mod if isinstance(built, tvm.runtime.Executable) else built
    own = [str(module.inspect_source())] if module.kind == "cuda" else []
    assert all(own), "expected an executable, got a module that was loaded without its source"
    return own + [text for inner in module.imports for text in sources_of(inner)]


def _compile(func_or_mod: tvm.tirx.PrimFunc | tvm.IRModule, target: Target) -> Any:
    with target:  # TVM asks it for a GPU's architecture
        return tvm.compile(func_or_mod, target=target, relax_pipeline=None)


@functools.cache
def _compilers() -> str:
    """Versions of TVM's libraries and of what compiles and links."""
    libraries = sorted((Path(tvm.__file__).parent / "lib").glob("*.so"))
    sizes = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in libraries]
    own = Path(__file__).read_bytes()
    return repr((tvm.__version__, tvm_ffi.__version__, sizes, _toolchain.fingerprint(), own))


@functools.cache
def _folder() -> Path:
    folder = cache_folder() / "compiled"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _toolchain.remove_unused(folder.iterdir())
    return folder


def _write(executable: Any, scratch: Path) -> None:
    """Fail where nothing can be linked: Relax without a function of TensorIR is C text."""
    (scratch / _SOURCES).write_text(json.dumps(sources_of(executable)))
    executable.export_library(str(scratch / _LIBRARY), fcompile=_link)


def _link(library: str, objects: list[str], **_: object) -> None:
    if any(not name.endswith(".o") for name in objects):
        raise _IsTextError
    _toolchain.link(objects, library, "-s")
