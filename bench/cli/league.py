"""`bench league`: tune and run one method on the league's tasks, and put it beside all others (docs/league.md)."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from bench.cli.run import PluginFiles
from bench.errors import UserError

VERSION = "league_1"
Tier = Annotated[Literal["small", "full"], typer.Option(help="small: two CPU cores; full: a GPU.")]
Out = Annotated[Path | None, typer.Option(help="Where entries lie; default: runs/league_1_TIER.", show_default=False)]

app = typer.Typer(help="The league: a standing comparison that anyone can recompute and join.", no_args_is_help=True)


@app.command()
def run(
    method: Annotated[str, typer.Option(help="A registered method, or one of --plugin.")],
    tier: Tier = "small",
    plugin: PluginFiles = None,
    out: Out = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Cells side by side; default: one per core.")] = None,
    data_root: Annotated[Path, typer.Option(help="Where data files lie.")] = Path("data"),
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Tune and run one method on all tasks, and pack its entry. The same command goes on where it was stopped."""
    from bench.cli.sweep import sweep
    from bench.runs.pack import SUFFIX, pack

    folder = _folder(tier, out)
    sweep(
        study=f"{VERSION}_{tier}",
        set_=[f"methods=[{method}]"],
        trials=None,
        timeout=None,
        jobs=jobs,
        storage=None,
        out=folder / method,
        plugin=plugin,
        device="auto",
        executor="auto",
        data_root=data_root,
        download=False,
        tracking_uri=None,
        tracking=False,
        page=False,
        quiet=quiet,
        _misplaced=None,
    )
    file = folder / f"{method}{SUFFIX}"
    count = pack(folder / method, file)
    print(f"{file}: {count} cells. `bench league report` puts it beside the others.")


@app.command()
def report(
    entries: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[ENTRY...]", help="Further entries, as `bench league run` packs them."),
    ] = None,
    tier: Tier = "small",
    out: Out = None,
) -> None:
    """Make the league's page from the shipped entries and your own."""
    import tempfile

    from bench.runs.pack import unpack
    from reports.league import shipped, write_league

    folder = _folder(tier, out)
    files = {
        file.name: file for file in (*shipped(f"{VERSION}_{tier}"), *sorted(folder.glob("*.tar.xz")), *(entries or []))
    }
    if not files:
        raise UserError("there are no entries yet: `bench league run --method NAME` makes one")
    with tempfile.TemporaryDirectory() as scratch:
        for name, file in files.items():
            unpack(file, Path(scratch, name))
        title = f"{VERSION.replace('_', '-')}, {tier} tier"
        print(write_league([Path(scratch, name) for name in files], folder / "report", title))


@app.command()
def export(
    method: Annotated[str, typer.Option(help="The method whose entry is to be published.")],
    tier: Tier = "small",
    out: Out = None,
) -> None:
    """Make a folder to publish: entry, environment, LaTeX table, citation, answers to a reproducibility checklist."""
    from importlib.metadata import distributions

    from reports.league import write_export

    folder = _folder(tier, out)
    entry = folder / f"{method}.tar.xz"
    if not entry.exists():
        raise UserError(f"there is no {entry}: `bench league run --method {method}` makes it")
    page = folder / "report"
    if not page.exists():
        raise UserError(f"there is no {page}: `bench league report` makes it")
    installed = sorted(f"{one.name}=={one.version}" for one in distributions())
    print(write_export(entry, page, folder / "export" / method, f"{VERSION}_{tier}", installed))


def _folder(tier: str, out: Path | None) -> Path:
    return out or Path("runs") / f"{VERSION}_{tier}"
