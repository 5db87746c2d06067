"""Files that appear whole or not at all, with the mode that the folder's users expect."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_PART = re.compile(r"\.tvm-scan-[0-9a-f]{16}(\.\w+)?")

#: Bytes that the object files of a library and what the linker makes of them stay below.
_OBJECTS = 32 << 20


def is_part(path: Path) -> bool:
    """Return whether a file was left by a writer that died: only our parts have such a name."""
    with contextlib.suppress(OSError):
        return _PART.fullmatch(path.name) is not None and stat.S_ISREG(path.lstat().st_mode)
    return False


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Write beside a file, and put the result in its place.

    Parameters
    ----------
    path : Path
        The file. A link is followed; what is there and is no file (``/dev/stdout``) is written to
        as it is.

    Yields
    ------
    Path
        Where to write: a name in the same folder, of the same ending, which is not there yet.

    Raises
    ------
    WriteError
        If the block raises an ``OSError``, or the file cannot be put in its place: then it is as it
        was.

    Notes
    -----
    A new file has the mode that the umask gives. A file that is replaced keeps its mode and, where
    the system allows it, its group: in a shared folder colleagues go on reading and writing it.
    """
    try:
        with _beside(path) as part:
            yield part
    except OSError as error:
        from tvm_scan.errors import WriteError  # imports TVM, which the kernel cache does without

        raise WriteError(
            f"expected to write {path}, got: {error.strerror or error}{_where(error, path)}; make "
            "room, or choose another path"
        ) from error


def write_file(path: Path, content: bytes | str) -> None:
    """Write a file whole, or leave it as it was; as ``replacing``.

    Parameters
    ----------
    path : Path
        The file.
    content : bytes or str
        Its new content; text is written as UTF-8.

    Raises
    ------
    WriteError
        If the disk is full or the file cannot be written; the message names it.
    """
    data = content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content
    with replacing(path) as part:
        _write(part, data, 0o666, sync=part != path)


def check_folder(folder: Path, caller: str) -> None:
    """Check, before anything is compiled, that a folder can be written to, or made.

    Parameters
    ----------
    folder : Path
        The folder; it need not be there.
    caller : str
        Who asks, for the message.

    Raises
    ------
    WriteError
        If it is a file, or cannot be written to.
    """
    from tvm_scan.errors import WriteError  # as above

    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not there.is_dir():
        raise WriteError(f"{caller}: expected a folder at {there}, found a file; name another one")
    if not os.access(there, os.W_OK | os.X_OK):
        raise WriteError(
            f"{caller}: expected a folder that can be written to, found {there}, which cannot; "
            "name another one, or change its permissions"
        )


def write_library(built: Any, path: Path, **options: Any) -> None:
    """Write what TVM built as a library; as ``replacing``.

    Parameters
    ----------
    built : Module or Executable
        With a method ``export_library``.
    path : Path
        The file; its ending says what is written.
    **options : Any
        Of ``export_library``.

    Raises
    ------
    WriteError
        If the disk is full, or the linker fails; the message names the file.
    """
    with replacing(path) as part:
        check_room()
        try:
            built.export_library(str(part), **options)
        except RuntimeError as error:  # of the linker, whose own file has another name
            raise OSError(f"{error}".strip() or type(error).__name__) from error


def check_room() -> None:
    """Raise an ``OSError`` if there is no room for the object files of a library.

    LLVM ends the process where it cannot write one.
    """
    folder = tempfile.gettempdir()
    if shutil.disk_usage(folder).free < _OBJECTS:
        raise OSError(errno.ENOSPC, f"less than {_OBJECTS >> 20} MiB are free", folder)


def write_private(path: Path, content: bytes) -> None:
    """Write a file whole that its owner alone may read; a plain ``OSError`` where it cannot be.

    Whether it is on the disk before it takes its place is left to the system: who reads it has a
    checksum.
    """
    with _beside(path) as part:
        _write(part, content, 0o600, sync=False)


@contextlib.contextmanager
def _beside(path: Path) -> Iterator[Path]:
    if path.exists() and not path.is_file():
        yield path
        return
    target = Path(os.path.realpath(path))
    part = target.with_name(f".tvm-scan-{secrets.token_hex(8)}{_ending(target)}")
    try:
        yield part
        _keep_mode(target, part)
        os.replace(part, target)
    finally:
        with contextlib.suppress(OSError):
            part.unlink()


def _write(path: Path, data: bytes, mode: int, *, sync: bool) -> None:
    with open(path, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
        file.write(data)
        file.flush()
        if sync:
            os.fsync(file.fileno())


def _where(error: OSError, path: Path) -> str:
    """The other file that is at fault, such as one of the folder for temporary files."""
    name = error.filename
    return f" ({name})" if name and Path(os.fsdecode(name)).parent != path.parent else ""


def _ending(path: Path) -> str:
    # Linkers go by it; anything longer than one is part of a name.
    return path.suffix if re.fullmatch(r"\.\w{1,16}", path.suffix) else ""


def _keep_mode(target: Path, part: Path) -> None:
    """Give a new file the mode and the group of the one that it replaces."""
    try:
        before = target.stat()
    except FileNotFoundError:
        return
    if hasattr(os, "chown"):
        with contextlib.suppress(OSError):
            os.chown(part, -1, before.st_gid)
    os.chmod(part, stat.S_IMODE(before.st_mode))
