"""``tvm-scan cache``: the kernels that the torch functions keep on disk."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from tvm_scan.cli.support.failure import CommandError
from tvm_scan.cli.support.options import Json
from tvm_scan.cli.support.terminal import print_json, print_wrapped, visible

command = typer.Typer(
    add_completion=False,
    invoke_without_command=True,
    rich_markup_mode="rich",
)


@command.callback()
def _cache(context: typer.Context, as_json: Json = False) -> None:
    """Look at the kernels that the torch functions keep on disk, limit or remove them.

    Example: tvm-scan cache
    """
    if context.invoked_subcommand is None:
        _show(as_json)


@command.command("show")
def _show(as_json: Json = False) -> None:
    """List the entries, the latest used first.

    Example: tvm-scan cache show
    """
    store = _store()
    about, stored = _about(store), store.entries()
    if as_json:
        entries = [vars(entry) for entry in stored]
        folder = None if about.folder is None else str(about.folder)
        whole = {"folder": folder, "bytes": about.bytes, "limit": about.limit, "entries": entries}
        print_json(whole)
        return
    if about.folder is None:
        typer.echo(
            "the cache is off, or its folder is not this user's alone to write to, or its name is "
            "no text"
        )
        return
    count, size = about.entries, about.bytes / 2**20
    print_wrapped(f"{count} entries, {size:.1f} of at most {about.limit >> 20} MiB", 0)
    print_wrapped(visible(about.folder), 0)
    for entry in stored:
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used))
        print_wrapped(f"{entry.bytes / 1024:>8.1f} KiB  {used}  {visible(entry.what)}", 32)


@command.command("path")
def _path(as_json: Json = False) -> None:
    """Print the folder.

    Example: tvm-scan cache path
    """
    folder = _store().cache_folder()
    if folder is None:
        raise CommandError(
            "cache path: expected a cache, found that it is off or not this user's alone to write "
            "to; unset TVM_SCAN_CACHE, or give it a folder of yours"
        )
    print_json({"folder": str(folder)}) if as_json else typer.echo(str(folder))


@command.command("clear")
def _clear(as_json: Json = False) -> None:
    """Remove every entry; kernels are built again when they are needed.

    Example: tvm-scan cache clear
    """
    store = _store()
    size = _about(store).bytes
    count = store.clear()
    if as_json:
        print_json({"removed": count, "bytes": size})
        return
    typer.echo(f"removed {count} entries, {size / 2**20:.1f} MiB")


@command.command("limit")
def _limit(
    megabytes: Annotated[int, typer.Argument(min=0, help="of the whole cache, in MiB")],
    as_json: Json = False,
) -> None:
    """Limit the size from now on; what was used longest ago goes first.

    Example: tvm-scan cache limit 128
    """
    store = _store()
    try:
        store.set_limit(megabytes)
    except ValueError as error:
        raise CommandError(str(error)) from error
    about = _about(store)
    if as_json:
        print_json({"bytes": about.bytes, "limit": about.limit})
        return
    typer.echo(f"{about.bytes / 2**20:.1f} of at most {about.limit >> 20} MiB")


def _about(store: Any) -> Any:
    try:
        return store.info()
    except ValueError as error:  # a limit in the environment that is no number
        raise CommandError(str(error)) from error


def _store() -> Any:
    try:
        from tvm_scan.torch import store
    except ModuleNotFoundError as error:
        raise CommandError(
            f"cache: expected torch, whose kernels these are, got {error}; "
            "pip install tvm-scan[torch]"
        ) from error
    return store
