"""``python -m tests.programs.suite table --write``, and ``mutate`` in its place."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track

from tests import ROOT
from tests.programs.suite.classes import ACCEPTED
from tests.programs.suite.mutation import judge, mutants
from tests.programs.suite.table import table as make_table

app = typer.Typer(help="The public suite of recurrences.", no_args_is_help=True)
_PAGE = ROOT / "docs" / "suite.md"


@app.command()
def table(write: Annotated[bool, typer.Option(help="Into docs/suite.md.")] = False) -> None:
    """Show every program with its answer, or write the page."""
    page = make_table()
    if write:
        _PAGE.write_text(page)
        print(f"wrote {_PAGE}")
    else:
        print(page)


@app.command()
def mutate(
    per_program: Annotated[int, typer.Option(help="Mutants of each program.")] = 20,
    seed: Annotated[int, typer.Option(help="Of the changes and the inputs.")] = 0,
    only: Annotated[str, typer.Option(help="A part of the names.")] = "",
) -> None:
    """Change every program in one place and hold each mutant against its own loop."""
    console = Console()
    made = accepted = wrong = 0
    for name, program in track(ACCEPTED.items(), "mutants", console=console):
        if only not in name:
            continue
        for number, mutant in enumerate(mutants(program.func, per_program, f"{seed} {name}")):
            verdict = judge(program, mutant, seed=number)
            made += 1
            accepted += verdict.accepted
            if not verdict.right:
                wrong += 1
                console.print(f"[red]wrong[/]: {name}: {mutant.change}")
    console.print(f"{made} mutants, {accepted} taken, {made - accepted} refused, {wrong} wrong")
    if wrong:
        raise typer.Exit(1)


app()
