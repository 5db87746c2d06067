"""The commands and their options."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from tvm_scan.cli.app_cache import cache
from tvm_scan.cli.app_inspect import register as register_inspection
from tvm_scan.cli.app_records import register as register_records
from tvm_scan.cli.support.failure import BAD_INPUT, REFUSED, CommandError

__all__ = ["app", "run"]

app = typer.Typer(
    help="Turn sequential TensorIR recurrences into parallel scans.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
)

Target = Annotated[
    str, typer.Option("--target", help="cpu (this machine), cuda, cuda:sm_100, or TVM's as JSON")
]
Plan = Annotated[
    str | None,
    typer.Option("--plan", help="a plan as printed by explain; the default if not given"),
]
Name = Annotated[
    str | None, typer.Option("--func", help="name of the primfunc, if the file has several")
]
Json = Annotated[bool, typer.Option("--json", help="print one JSON object instead of tables")]


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="show tracebacks")] = False,
) -> None:
    """Turn sequential TensorIR recurrences into parallel scans."""
    if debug:
        os.environ["TVM_SCAN_DEBUG"] = "1"


@app.command("run")
def run_command(
    file: Annotated[Path, typer.Argument(help="Python file with a primfunc")],
    inputs: Annotated[Path, typer.Argument(help=".npz with one array per parameter, by name")],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="outputs as .npz")] = None,
    func: Name = None,
    target: Target = "cpu",
    plan: Plan = None,
    as_json: Json = False,
) -> None:
    """Run a recurrence as a scan and compare it with its sequential loop.

    Example: tvm-scan run recurrence.py inputs.npz -o outputs.npz
    """
    from tvm_scan.cli.run import run_file

    run_file(file, inputs, output, func, target, plan, as_json)


@app.command("explain")
def explain_command(
    what: Annotated[str, typer.Argument(help="Python file, or library:NAME (library:cumsum)")],
    func: Name = None,
    target: Target = "cpu",
    plan: Plan = None,
    svg: Annotated[Path | None, typer.Option("--svg", help="draw the tree into this file")] = None,
    source: Annotated[bool, typer.Option("--source", help="print the kernel's source")] = False,
    cost: Annotated[
        bool, typer.Option("--cost", help="print bytes, operations, barriers, shared memory")
    ] = False,
    prove: Annotated[
        bool, typer.Option("--prove", help="print a proof for all inputs, by the solver z3")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show the equation found, its family, the plan and the tree; or why it is refused.

    With --prove, exit code 1 if the solver finds inputs for which the scan is not the loop.

    Example: tvm-scan explain library:linear_recurrence --target cuda --svg tree.svg
    """
    from tvm_scan.cli.explain import explain

    explain(what, func, target, plan, svg, source, cost, prove, as_json)


@app.command("verify")
def verify_command(
    what: Annotated[str, typer.Argument(help="Python file, library:NAME, or a folder of records")],
    func: Name = None,
    target: Target = "cpu",
    plan: Plan = None,
    as_json: Json = False,
) -> None:
    """Compare the scan with its loop on random and adversarial inputs, in ulps.

    Of a folder of records every one is built and run again; exit code 1 if one is wrong.

    Example: tvm-scan verify library:linear_recurrence
    """
    if Path(what).is_dir():
        from tvm_scan.cli.verify_records import verify_records

        verify_records(Path(what), as_json)
        return
    from tvm_scan.cli.verify import verify_file

    verify_file(what, func, target, plan, as_json)


@app.command("demo")
def demo_command(
    text: Annotated[
        Path | None, typer.Option("--text", help="text file; the licence if not given")
    ] = None,
    d_model: Annotated[
        int, typer.Option("--d-model", min=1, max=4096, help="width of the layer")
    ] = 64,
    d_state: Annotated[
        int, typer.Option("--d-state", min=1, max=64, help="states of a channel")
    ] = 16,
    length: Annotated[
        int, typer.Option("--length", min=1, max=1 << 20, help="bytes of the text to use at most")
    ] = 4096,
    target: Target = "cpu",
    as_json: Json = False,
) -> None:
    """Run a Mamba layer over the bytes of a text, check it, and time it.

    Example: tvm-scan demo --length 2048
    """
    from tvm_scan.cli.demo import demo

    demo(text, d_model, d_state, length, target, as_json)


@app.command("compile")
def compile_command(
    model: Annotated[Path, typer.Argument(help=".pt2, .onnx, or .py with an IRModule")],
    output: Annotated[Path, typer.Option("-o", "--output", help="folder to write")],
    target: Target = "cpu",
    database: Annotated[
        Path | None, typer.Option("--database", help="work directory of a tuning run")
    ] = None,
    report: Annotated[Path | None, typer.Option("--report", help="summary as HTML")] = None,
    as_json: Json = False,
) -> None:
    """Compile a model with its recurrences as scans, for the runtime alone to run.

    For another machine: --target '{"kind": "llvm", "mtriple": "aarch64-linux-gnu"}'

    Example: tvm-scan compile model.pt2 --target cpu -o model
    """
    from tvm_scan.cli.compile import compile_file

    compile_file(model, output, target, database, report, as_json)


register_records(app)
register_inspection(app)
app.add_typer(cache, name="cache")


def run() -> None:
    """Run the command line; failures are one message and an exit code."""
    for stream in (sys.stdout, sys.stderr):  # names need not be text in the terminal's encoding
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        app(standalone_mode=False)
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
    """What to say of an error that no command has words for, and the exit code."""
    shown = getattr(error, "format_message", None)
    if shown is not None:  # a usage error of the argument parser
        return f"{shown().rstrip('.')}; see tvm-scan --help", BAD_INPUT
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
    """What is left in the buffer cannot be written: Python would try once more at its end."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str, code: int) -> None:
    print(f"tvm-scan: {message}", file=sys.stderr)
    sys.exit(code)
