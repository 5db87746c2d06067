"""``tvm-scan apply``: a program compiled with the records of a database."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tvm_scan.cli.compile import compile_file
from tvm_scan.cli.support.failure import NO_RECORD, CommandError
from tvm_scan.cli.support.options import Dtype, Folder, Json, Name, Shape, Target, What
from tvm_scan.cli.support.paths import check_database, check_folder, check_program
from tvm_scan.cli.support.terminal import print_json


def command(
    folder: Folder,
    what: What,
    output: Annotated[
        Path, typer.Option("-o", "--output", help=".so to write; a folder for a model")
    ],
    func: Name = None,
    shape: Shape = None,
    dtype: Dtype = "float32",
    target: Target = "cpu",
    as_json: Json = False,
) -> None:
    """Compile a program with the records of a database.

    Example: tvm-scan apply tvm_scan_records library:cumsum --shape 4,4096 -o cumsum.so
    """
    check_database(folder)
    check_program(what)
    check_folder(output)
    import tvm

    from tvm_scan._files import write_library
    from tvm_scan.cli.support.load import make_target
    from tvm_scan.cli.support.programs import is_model, load_program
    from tvm_scan.cli.support.records import none_for
    from tvm_scan.cuda_math import build
    from tvm_scan.meta import RecordStore
    from tvm_scan.meta.store.nearest import tuned_function

    if is_model(Path(what)):
        compile_file(Path(what), output, target, folder, None, as_json)
        return
    store, on = RecordStore(folder), make_target(target)
    program = load_program(what, func, shape, dtype, on)
    mod = tvm.IRModule()
    applied: dict[str, dict[str, Any]] = {}
    for key, loop in program.items():
        tuned = tuned_function(store, loop, on)
        if tuned is None:
            raise CommandError(none_for(store, on, [key]), NO_RECORD)
        applied[key] = {
            "record": tuned.records[0],
            "plans": [str(plan) for plan in tuned.plans],
            "exact": tuned.exact,
        }
        mod.update_func(tvm.ir.GlobalVar(key), tuned.func.with_attr("global_symbol", key))
    if output.suffix != ".so":
        raise CommandError(f"expected --output as a .so file, got {output.name}; name it so")
    write_library(build(mod, on), output)
    if as_json:
        print_json({"library": str(output), "functions": applied})
        return
    for key, used in applied.items():
        near = "" if used["exact"] else "  (of the nearest recorded shape)"
        print(f"{key}  {' + '.join(used['plans'])}  {used['record']}{near}")
    print(f"written: {output}; load it with tvm.runtime.load_module({str(output.resolve())!r})")
