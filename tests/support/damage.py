"""Files that are damaged, and disks that are full or may not be written to, for every reader."""

import builtins
import contextlib
import errno
import io
import os
import resource
import shutil
import signal
from pathlib import Path

__all__ = ["DAMAGES", "copied", "damaged", "denied", "full_disk", "read_only", "snapshot"]


def _truncated(path):
    path.write_bytes(path.read_bytes()[:-40])


def _flipped(path):
    data = bytearray(path.read_bytes() or b" ")
    data[len(data) // 2] ^= 0x55
    path.write_bytes(bytes(data))


def _appended(more):
    def damage(path):
        path.write_bytes(path.read_bytes() + more)

    return damage


def _written(content):
    return lambda path: path.write_bytes(content)


def _folder(path):
    path.unlink(missing_ok=True)
    path.mkdir()


#: What is done to a file; those of a context manager are in ``damaged``.
DAMAGES = {
    "truncated": _truncated,
    "a bit flipped": _flipped,
    "empty": _written(b""),
    "not UTF-8": _written(b"\xff\xfe\x00\x80" * 20),
    "not UTF-8 at its end": _appended(b"\xff\xfe\n"),
    "too deep": _written(b"[" * 200_000),
    "deep": _appended(b"[" * 900 + b"]" * 900 + b"\n"),
    "another value": _written(b"[]\n"),
    "a word": _written(b'"word"\n'),
    "NaN": _written(b"NaN\n"),
    "a huge number": _written(b"9" * 4000 + b"\n"),
    "a number beyond Python's": _written(b"9" * 9000 + b"\n"),
    "null": _written(b"null\n"),
    "a folder": _folder,
    "missing": lambda path: path.unlink(missing_ok=True),
}


@contextlib.contextmanager
def damaged(path, how):
    """Damage a file for a while; ``unreadable`` and ``read-only`` end with the context."""
    if how == "unreadable":
        with denied(path):
            yield
    elif how == "in a read-only folder":
        with read_only(path.parent):
            yield
    else:
        DAMAGES[how](path)
        yield


def _under(name, folder):
    return isinstance(name, str | bytes | os.PathLike) and Path(os.fsdecode(name)).is_relative_to(
        folder
    )


@contextlib.contextmanager
def _patched(**functions):
    """Replace functions of ``os`` and ``io``; root may do anything, so that modes tell nothing."""
    before = {}
    for name, wrapper in functions.items():
        for module in (os, io, builtins):
            if hasattr(module, name):
                before[module, name] = getattr(module, name)
                setattr(module, name, wrapper(before[module, name]))
    try:
        yield
    finally:
        for (module, name), real in before.items():
            setattr(module, name, real)


@contextlib.contextmanager
def denied(path):
    """Let nobody open a file."""

    def wrapper(real):
        def opened(name, *arguments, **options):
            if _under(name, path):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(name))
            return real(name, *arguments, **options)

        return opened

    with _patched(open=wrapper):
        yield


@contextlib.contextmanager
def read_only(folder):
    """Let nobody write into a folder, as on a disk that is mounted so."""

    def refused(name):
        return OSError(errno.EROFS, os.strerror(errno.EROFS), os.fspath(name))

    def opening(real):
        def opened(name, *arguments, **options):
            how = options.get("mode", options.get("flags", arguments[0] if arguments else "r"))
            writes = how & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) if isinstance(how, int) else None
            if _under(name, folder) and (writes or (writes is None and set(how) & set("wax+"))):
                raise refused(name)
            return real(name, *arguments, **options)

        return opened

    def changing(real):
        def changed(name, *arguments, **options):
            if _under(name, folder):
                raise refused(name)
            return real(name, *arguments, **options)

        return changed

    def access(real):
        def accessed(name, mode, **options):
            return real(name, mode, **options) and not (mode & os.W_OK and _under(name, folder))

        return accessed

    changes = dict.fromkeys(("replace", "rename", "unlink", "mkdir", "chmod", "utime"), changing)
    with _patched(open=opening, access=access, **changes):
        yield


@contextlib.contextmanager
def full_disk(room=10):
    """Let no file, of this process and of those that it starts, grow beyond ``room`` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)


def snapshot(folder):
    """Everything under a folder: names, contents and modes."""
    return {
        str(path.relative_to(folder)): (path.stat().st_mode, path.is_file() and path.read_bytes())
        for path in sorted(Path(folder).rglob("*"))
    }


def copied(folder, to):
    """A copy of a folder to be damaged."""
    return Path(shutil.copytree(folder, to))
