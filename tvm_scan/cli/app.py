"""The table of commands, and how one of them is run: a failure is one message and an exit code."""

from __future__ import annotations

import contextlib
import os
import sys
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.completion import (
    get_completion_inspect_parameters,
    install_callback,
    show_callback,
)
from typer.core import TyperGroup

from tvm_scan.cli.support.failure import BAD_INPUT, REFUSED, CommandError

#: The commands by their group in the help. Each is the ``command`` of the module of its name, which
#: is imported when it is asked for.
_GROUPS = {
    "One loop": ("explain", "verify", "run", "compare", "demo"),
    "Models": ("compile",),
    "Tuning and its records": ("tune", "list", "best", "show", "apply", "report"),
    "Records of several machines": ("merge", "prune", "export", "import"),
    "This machine": ("doctor", "calibrate", "cache", "bench"),
}
COMMANDS = {name: group for group, names in _GROUPS.items() for name in names}
#: Names that Python keeps for itself.
MODULES = {"import": "import_"}


class _Commands(TyperGroup):
    """Commands by name, each imported when it is looked up first."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands: Any = dict.fromkeys(COMMANDS)

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in COMMANDS and self.commands[cmd_name] is None:
            self.commands[cmd_name] = _built(cmd_name)
        return self.commands.get(cmd_name)


def _built(name: str) -> Any:
    module = import_module(f"tvm_scan.cli.{MODULES.get(name, name)}")
    typer_app = module.command
    if not isinstance(typer_app, typer.Typer):  # else it is a group with commands of its own
        typer_app = typer.Typer(add_completion=False, rich_markup_mode="rich")
        settings = getattr(module, "SETTINGS", None)
        typer_app.command(name, context_settings=settings)(module.command)
    built: Any = typer.main.get_command(typer_app)
    built.name, built.rich_help_panel = name, COMMANDS[name]
    return built


app = typer.Typer(
    cls=_Commands,
    help="Turn sequential TensorIR recurrences into parallel scans.",
    no_args_is_help=True,
    # Its own options ask which shell runs this, and ignore the name of another one.
    add_completion=False,
    rich_markup_mode="rich",
)
get_completion_inspect_parameters()  # registers the shells
_SHELLS = ("bash", "zsh", "fish", "powershell", "pwsh")


def _print_version(wanted: bool) -> None:
    if wanted:
        from tvm_scan import __version__

        print(f"tvm_scan {__version__}")
        raise typer.Exit


def _complete(ctx: typer.Context, param: typer.CallbackParam, shell: str) -> str:
    if shell and shell not in _SHELLS:
        raise typer.BadParameter(f"expected one of {', '.join(_SHELLS)}, got {shell!r}")
    does = install_callback if param.name == "_install" else show_callback
    return str(does(ctx, param, shell))


_SHELL: dict[str, Any] = {"metavar": "SHELL", "callback": _complete, "is_eager": True}


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="show tracebacks")] = False,
    _version: Annotated[
        bool,
        typer.Option("--version", help="print the version", callback=_print_version, is_eager=True),
    ] = False,
    _install: Annotated[
        str,
        typer.Option(
            "--install-completion",
            help="teach bash, zsh, fish or powershell to complete commands and options",
            **_SHELL,
        ),
    ] = "",
    _show: Annotated[
        str,
        typer.Option("--show-completion", help="print what --install-completion adds", **_SHELL),
    ] = "",
) -> None:
    """Turn sequential TensorIR recurrences into parallel scans."""
    if debug:
        os.environ["TVM_SCAN_DEBUG"] = "1"


def run() -> None:
    """Run the command line; failures are one message and an exit code."""
    for stream in (sys.stdout, sys.stderr):  # names need not be text in the terminal's encoding
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        app(standalone_mode=False, prog_name="tvm-scan")
        sys.stdout.flush()
    except CommandError as error:
        _fail(str(error), error.code)
    except typer.Exit as done:
        sys.exit(done.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        _fail("interrupted", 130)
    except BrokenPipeError:  # who reads the output has had enough of it; as click has it
        _drop_output()
        sys.exit(1)
    except Exception as error:
        if os.environ.get("TVM_SCAN_DEBUG"):
            raise
        _fail(*_described(error))
    sys.exit(0)


def _described(error: Exception) -> tuple[str, int]:
    """Message and exit code for an error that no command has words for."""
    shown = getattr(error, "format_message", None)
    if shown is not None:  # a usage error of the argument parser, in the command that it names
        context = getattr(error, "ctx", None)
        # Of an option without its value the error has no context.
        named = " ".join(["tvm-scan", *[word for word in sys.argv[1:] if word in COMMANDS][:1]])
        words = named if context is None else context.command_path
        said = shown().rstrip(".")  # empty where the help was asked for, and is printed
        see = f" See {words} --help" if said.endswith("?") else f"; see {words} --help"
        return f"{said}{see}" if said else "", BAD_INPUT
    if isinstance(error, OSError) and error.strerror is not None:
        if error.filename is None:
            _drop_output()
        what = "the output" if error.filename is None else error.filename
        return (
            f"expected to read or write {what}, got: {error.strerror}; mend that first",
            BAD_INPUT,
        )
    if "tvm_scan.errors" in sys.modules:  # else nothing was imported that could have raised it
        from tvm_scan.errors import RefusalError, ScanError

        if isinstance(error, ScanError):
            return str(error), REFUSED if isinstance(error, RefusalError) else BAD_INPUT
    name = type(error).__name__
    return f"{name}: {error}\n(run tvm-scan --debug ... for the traceback)", 1


def _drop_output() -> None:
    """Drop output that cannot be written: Python would try once more at its end."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str, code: int) -> None:
    if message:
        print(f"tvm-scan: {message}", file=sys.stderr)
    sys.exit(code)
