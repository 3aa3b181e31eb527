"""`bench protocol`: protocols of published numbers, and how well their settings are known (docs/protocols.md)."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from bench.cli.commands import Commands
from bench.runs.options import DataRoot, SessionOptions

app = Commands(
    name="protocol", help="Published protocols: grids whose numbers stand beside printed ones.", no_args_is_help=True
)


@app.command("list")
def list_() -> None:
    """List the protocols and their grids."""
    from bench.config.grid import load_grid
    from reports.published.protocol import protocols

    for name, protocol in protocols().items():
        grids = ", ".join(f"{grid} ({len(load_grid(grid).cells)} cells)" for grid in protocol.grids.values())
        print(f"{name}  {protocol.title}: {grids}")


@app.command()
def check(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A protocol (`bench protocol list`).")],
    data_root: DataRoot = Path("data"),
    hours: Annotated[bool, typer.Option(help="Estimate how long it takes here.")] = True,
) -> None:
    """Say which settings are known, assumed or deviating, and the hours here."""
    from bench.cli.dry_run import print_forecast
    from bench.config.grid import load_grid
    from bench.results.cell_names import task_name
    from bench.runs.forecast.outline import missing_file
    from reports.published.protocol import STANDINGS, protocol

    def one_set(grid: str) -> str:
        """Select the grid's first data set that is here, or else its first."""
        sets = [cell.dataset for cell in load_grid(grid).cells]
        return f"--only dataset={next((name for name in sets if not missing_file(name, data_root)), sets[0])}"

    checked = protocol(name)
    print(f"{checked.title}. Of {checked.of}.\n\n{checked.verdict}")
    for standing in STANDINGS:
        print(f"\n{standing}:")
        for point in (point for point in checked.points if point.standing == standing):
            only = "".join(f" [{key}: {', '.join(map(str, values))}]" for key, values in point.only.items())
            print(f"  {', '.join(point.of)}{only}: {point.source}")
    data = "" if data_root == Path("data") else f" --data-root {shlex.quote(str(data_root))}"
    for grid in checked.grids.values():
        cells = load_grid(grid).cells
        print(f"\n{grid}: `bench run --grid {grid}.yaml{data}`; one data set: `{one_set(grid)}`")
        first_cells = {task_name(cell): cell for cell in reversed(cells)}
        for task, cell in reversed(first_cells.items()):
            everywhere, here = (checked.standings(cell, local=local) for local in (False, True))
            counts = ", ".join(f"{len(everywhere[kind]) + len(here[kind])} {kind}" for kind in STANDINGS)
            listed = "; ".join(f"{kind}: {', '.join(here[kind])}" for kind in STANDINGS if here[kind])
            print(f"  {task}: {counts}" + (f"; not in all scenarios: {listed}" if listed else ""))
        if hours:
            print("  Hours here:")
            print_forecast(cells, Path("runs", grid), SessionOptions(data_root=data_root, quiet=True), known=True)
    short = checked.short
    settings = " ".join(f"--set {shlex.quote(text)}" for text in short.set)
    command = f"bench run --grid {short.grid}.yaml {one_set(short.grid)} {settings} --out runs/{name}_short{data}"
    print(f"\nshort, which stands beside no published number: `{command}`")
