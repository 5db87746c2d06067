"""Arguments and options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

#: Where records are kept if nothing else is said.
DATABASE = Path("tvm_scan_records")

What = Annotated[
    str, typer.Argument(help="Python file, library:NAME, or a model (.pt2, .onnx, .py)")
]
Name = Annotated[
    str | None, typer.Option("--func", help="name of the primfunc, if the file has several")
]
Shape = Annotated[str | None, typer.Option("--shape", help="sizes of a library recurrence: 4,4096")]
Dtype = Annotated[str, typer.Option("--dtype", help="of a library recurrence")]
Target = Annotated[
    str,
    typer.Option(
        "--target", help="cpu (this machine), cuda, cuda:sm_100, webgpu, or TVM's as JSON"
    ),
]
Plan = Annotated[
    str | None,
    typer.Option("--plan", help="a plan as printed by explain; the default if not given"),
]
Database = Annotated[Path, typer.Option("--database", help="folder of the records")]
Folder = Annotated[Path, typer.Argument(help="folder of the records")]
Svg = Annotated[Path | None, typer.Option("--svg", help="draw the tree into this file")]
Json = Annotated[bool, typer.Option("--json", help="print one JSON object instead of tables")]
