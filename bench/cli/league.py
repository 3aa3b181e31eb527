"""`bench league`: tune and run one method on the league's tasks, and put it beside all others (docs/league.md)."""

import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from bench.cli.run import PluginFiles
from bench.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from bench.results.results import RunView
    from sweeps.admission import Admission

VERSION = "league_1"
Tier = Annotated[Literal["small", "full"], typer.Option(help="small: two CPU cores; full: a GPU.")]
MethodOption = Annotated[
    str, typer.Option(metavar="NAME_OR_FILE", help="A method's id, or the .py file that registers one method.")
]
Out = Annotated[Path | None, typer.Option(help="Where entries lie; default: runs/league_1_TIER.", show_default=False)]

DataRoot = Annotated[Path, typer.Option(help="Where data files lie.")]

app = typer.Typer(help="The league: a standing comparison that anyone can recompute and join.", no_args_is_help=True)


@app.command()
def run(
    method: MethodOption,
    tier: Tier = "small",
    plugin: PluginFiles = None,
    out: Out = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Cells side by side; default: one per core.")] = None,
    data_root: DataRoot = Path("data"),
    download: Annotated[bool, typer.Option(help="Fetch missing data files.")] = False,
    dry_run: Annotated[bool, typer.Option(help="Only count the cells and estimate their cost.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Tune and run one method on all tasks, and pack its entry. The same command goes on where it was stopped."""
    from bench.cli.sweep import sweep
    from bench.results.pack import SUFFIX, pack

    folder, name = _folder(tier, out), _load(method, plugin)
    sweep(
        study=f"{VERSION}_{tier}",
        set_=[f"methods=[{name}]"],
        trials=None,
        timeout=None,
        jobs=jobs,
        storage=None,
        out=folder / name,
        plugin=None,
        device=None,
        executor="auto",
        data_root=data_root,
        download=download,
        dry_run=dry_run,
        measure=False,
        tracking_uri=None,
        tracking=False,
        page=False,
        quiet=quiet,
        _misplaced=None,
    )
    if dry_run:
        return
    file = folder / f"{name}{SUFFIX}"
    count = pack(folder / name, file)
    plugin_files = [*(plugin or []), *([method] if method.endswith(".py") else [])]
    command = " ".join(["bench league report", *(f"--plugin {shlex.quote(str(file))}" for file in plugin_files)])
    print(f"{file}: {count} cells. `{command}` puts it beside the others.")


@app.command()
def report(
    entries: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[ENTRY...]", help="Further entries, as `bench league run` packs them."),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(metavar="NAME_OR_FILE", help="Begin with this entry's method against all others."),
    ] = None,
    tier: Tier = "small",
    plugin: PluginFiles = None,
    out: Out = None,
    data_root: DataRoot = Path("data"),
) -> None:
    """Make the league's page from the shipped entries and your own. An entry that breaks the rules is refused."""
    import tempfile

    from reports.league.page import shipped, write_league

    folder, shipped_files, method_id = _folder(tier, out), shipped(f"{VERSION}_{tier}"), _load(method or "", plugin)
    files = [
        file for file in (*sorted(folder.glob("*.tar.xz")), *(entries or [])) if file.resolve() not in shipped_files
    ]
    with tempfile.TemporaryDirectory() as scratch:
        admission = _admission(tier, data_root)
        user_runs = _admitted(admission, files, Path(scratch, "own"))  # first, as they are more likely to be refused
        if method_id and method_id not in admission.names:
            raise UserError(f"there is no entry of a method {method_id!r}.{did_you_mean(method_id, admission.names)}")
        runs = _admitted(admission, shipped_files, Path(scratch, "shipped")) + user_runs
        if not runs:
            raise UserError("there are no entries yet: `bench league run --method NAME` makes one")
        title = f"{VERSION.replace('_', '-')}, {tier} tier"
        print(write_league(runs, folder / "report", title, method_id or None))


@app.command()
def compare(
    old: Annotated[Path, typer.Argument(metavar="OLD", help="A folder of entries (.tar.xz).")],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="Another one, with entries of the same names.")],
) -> None:
    """Say how well the ranks of two folders of entries agree, and who moved most. Nothing is written."""
    import tempfile

    from bench.results.pack import SUFFIX, unpack
    from reports.league.compare import compare_leagues
    from reports.tables.table import to_markdown

    with tempfile.TemporaryDirectory() as scratch:
        unpacked: list[list[Path]] = []
        for number, folder in enumerate((old, new)):
            files = sorted(folder.glob(f"*{SUFFIX}"))
            if not files:
                raise UserError(f"{folder} has no entries (*{SUFFIX}): give a folder of them")
            unpacked.append([Path(scratch, str(number), file.name) for file in files])
            for file, run in zip(files, unpacked[-1], strict=True):
                unpack(file, run)
        for table in compare_leagues(*unpacked):
            print(to_markdown(table) if table.rows else f"{table.title}: {table.caption}")


@app.command()
def export(
    method: MethodOption,
    tier: Tier = "small",
    plugin: PluginFiles = None,
    out: Out = None,
    data_root: DataRoot = Path("data"),
) -> None:
    """Make a folder to publish: entry, method, settings, environment, LaTeX tables, citation, checklist."""
    import tempfile

    from reports.league.export import write_export

    folder, study, name = _folder(tier, out), f"{VERSION}_{tier}", _load(method, plugin)
    entry = folder / f"{name}.tar.xz"
    if not entry.exists():
        raise UserError(f"there is no {entry}: `bench league run --method {method}` makes it")
    with tempfile.TemporaryDirectory() as scratch:
        [unpacked] = _admitted(_admission(tier, data_root, whole=False), [entry], Path(scratch))
        exported = write_export(entry, unpacked, folder / "report", folder / "export" / name, study)
    for warning in exported.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    print(exported.folder)


def _folder(tier: str, out: Path | None) -> Path:
    return out or Path("runs") / f"{VERSION}_{tier}"


def _load(method: str, plugins: list[Path] | None) -> str:
    """Load the plug-in files and return the method's name; if `method` is a file, that of the method it registers."""
    from bench.plugin import file_path, load_file

    for file in plugins or []:
        load_file(file)
    if not method.endswith(".py"):
        return method
    file_path(method)  # what is not there is refused before torch is imported
    from bench.conformance.suite import load

    names = load(Path(method))
    if len(names) > 1:
        raise UserError(
            f"{method} registers {len(names)} methods: choose one, for instance --method {names[0]} --plugin {method}"
        )
    return names[0]


def _admission(tier: str, data_root: Path, *, whole: bool = True) -> "Admission":
    from bench.results.pack import SUFFIX
    from reports.league.page import shipped
    from sweeps.admission import Admission
    from sweeps.study import load_study

    study = f"{VERSION}_{tier}"
    names = {file.name.removesuffix(SUFFIX): file for file in shipped(study)}
    return Admission(load_study(study, []), names, data_root, whole=whole)


def _admitted(admission: "Admission", files: Iterable[Path], scratch: Path) -> "list[RunView]":
    """Admit entries, each once, and return their runs, unpacked in `scratch`."""
    from bench.results.pack import unpack
    from bench.runs.progress import steps

    runs = []
    unique_files = {file.resolve(): file for file in files}
    with steps("reading entries") as step:
        for number, file in enumerate(unique_files.values()):
            step(f"{file.name}, {number + 1} of {len(unique_files)}")
            admission.admit(file, run := unpack(file, scratch / f"{number:03d}-{file.name}"))
            runs.append(run)
    return runs
