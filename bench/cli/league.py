"""`bench league`: tune and run one method on the league's tasks, and put it beside all others (docs/league.md)."""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from bench.cli.commands import Commands, DryRun, PluginFiles, load_plugins
from bench.cli.results import end_if_damaged
from bench.errors import UserError, did_you_mean
from bench.places import check_file, check_folder, check_output_folder
from bench.runs.options import DataRoot, Download, Quiet

if TYPE_CHECKING:
    from tempfile import TemporaryDirectory

    from bench.results.results import RunView
    from sweeps.admission import Admission, Division

SUFFIX = ".tar.xz"
"""Of an entry's file."""
NO_ENTRIES = "there are no entries yet: `bench league run --method NAME`, with the same options, makes one"
STANDING: Final = "2"
"""The league that all commands mean. Of league-1 only the rules are left, so that its entries stay readable."""
League = Annotated[Literal["1", "2"], typer.Option(help="Version of the league.")]
Tier = Annotated[
    Literal["small", "full", "photos"],
    typer.Option(help="small, photos: two CPU cores; full: a GPU, league-1's."),
]
DivisionOption = Annotated[
    Literal["tuned", "default"],
    typer.Option(help="default: the method's own defaults and one learning rate, no tuning."),
]
MethodOption = Annotated[
    str, typer.Option(metavar="NAME_OR_FILE", help="A method's id, or the .py file that registers one method.")
]
Out = Annotated[
    Path | None, typer.Option(help="Where entries lie; default: runs/league_LEAGUE_TIER.", show_default=False)
]


@dataclass(frozen=True)
class LeagueTier:
    """A division of a league's tier, as the options have them.

    Raises:
        UserError: the league has no such tier or division.
    """

    league: str
    tier: str
    division: "Division"

    def __post_init__(self) -> None:
        from sweeps.study_reader import builtin_studies

        prefix = f"league_{self.league}_"
        tiers = [name.removeprefix(prefix) for name in builtin_studies() if name.startswith(prefix)]
        if self.tier not in tiers:
            raise UserError(
                f"--tier {self.tier}: league-{self.league} has the tiers {', '.join(tiers)}; see also --league"
            )
        if self.division == "default" and not self.has_defaults:
            raise UserError("--division default: only league-2's small tier has one")

    @property
    def has_defaults(self) -> bool:
        """Whether the tier has a default division."""
        return (self.league, self.tier) == ("2", "small")

    @property
    def study(self) -> str:
        """Name of the study that defines it."""
        return f"league_{self.league}_{self.tier}"

    @property
    def name(self) -> str:
        """Name of its runs and of the folder of its entries."""
        from sweeps.admission import standing

        return standing(self.study, self.division)

    def folder(self, out: Path | None) -> Path:
        """The folder of a user's entries, which `--out` may name.

        Raises:
            UserError: nothing can be written there.
        """
        return check_output_folder(out or Path("runs") / self.name)

    @property
    def title(self) -> str:
        """The title of its page."""
        division = ", default division" if self.division == "default" else ""
        return f"league-{self.league}, {self.tier} tier{division}"

    @property
    def shipped(self) -> list[Path]:
        """The entries that come with the harness."""
        from reports.league.shipped import shipped

        return shipped(self.name)

    def entries(self, folder: Path, further: Sequence[Path] = ()) -> list[Path]:
        """The user's entries, which lie in a folder or are given."""
        files, shipped = (*sorted(folder.glob(f"*{SUFFIX}")), *further), self.shipped
        return [file for file in files if file.resolve() not in shipped]

    def admission(self, data_root: Path, *, whole: bool = True) -> "Admission":
        """The rules that its entries have to keep."""
        from sweeps.admission import Admission
        from sweeps.study_reader import load_study

        names = {file.name.removesuffix(SUFFIX): file for file in self.shipped}
        return Admission(load_study(self.study, []), names, data_root, whole=whole, division=self.division)


app = Commands(
    name="league", help="The league: a standing comparison that anyone can recompute and join.", no_args_is_help=True
)


@app.command()
def run(
    method: MethodOption,
    tier: Tier = "small",
    league: League = STANDING,
    division: DivisionOption = "tuned",
    plugin: PluginFiles = None,
    out: Out = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Cells side by side; default: one per core.")] = None,
    data_root: DataRoot = Path("data"),
    download: Download = False,
    dry_run: DryRun = False,
    quiet: Quiet = False,
) -> None:
    """Tune and run one method on all tasks, and pack its entry. The same command goes on where it was stopped."""
    from bench.results.pack import pack

    standing = LeagueTier(league, tier, division)
    folder, name = standing.folder(out), _load(method, plugin)
    options: dict[str, Any] = {
        "out": folder / name, "jobs": jobs, "data_root": data_root, "download": download, "dry_run": dry_run,
        "tracking": False, "quiet": quiet,
    }  # fmt: skip
    if division == "default":
        _run_defaults(standing, name, options)
    else:
        from bench.cli.sweep import sweep

        sweep(study=standing.study, set_=[f"methods=[{name}]"], page=False, **options)
    if dry_run:
        return
    file = folder / f"{name}{SUFFIX}"
    count = pack(folder / name, file)
    print(f"{file}: {count} cells. `bench league report`, with the same options, puts it beside the others.")


def _scratch() -> "TemporaryDirectory[str]":
    from tempfile import TemporaryDirectory  # here, as a command line is ready sooner without it

    return TemporaryDirectory()


def _run_defaults(standing: "LeagueTier", method: str, options: dict[str, Any]) -> None:
    """Run the cells of the default division, as `bench run` runs a grid."""
    from bench.cli.run import run as run_grid
    from sweeps.study_reader import load_study

    grid = load_study(standing.study, [f"methods=[{method}]"]).default_grid(standing.name)
    with _scratch() as scratch:
        file = Path(scratch, f"{grid.name}.yaml")
        file.write_text(grid.source, encoding="utf-8")
        run_grid(grid=str(file), **options)


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
    league: League = STANDING,
    division: DivisionOption = "tuned",
    plugin: PluginFiles = None,
    out: Out = None,
    data_root: DataRoot = Path("data"),
) -> None:
    """Make the league's page from the shipped entries and your own. An entry that breaks the rules is refused."""
    standing = LeagueTier(league, tier, division)
    given = [check_file(file, "packed run", "`bench league run` packs one") for file in entries or []]
    folder, name = standing.folder(out), _load(method or "", plugin)
    files = standing.entries(folder, given)
    if not given:  # entries in the folders are called after their methods
        _check_entry(name, [file.name.removesuffix(SUFFIX) for file in (*standing.shipped, *files)])
    from reports.league.page import write_league

    with _scratch() as scratch:
        admission = standing.admission(data_root)
        user_runs = _admitted(admission, files, Path(scratch, "own"))  # first, as they are more likely to be refused
        _check_entry(name, admission.names)
        runs = _admitted(admission, standing.shipped, Path(scratch, "shipped")) + user_runs
        if not runs:
            raise UserError(NO_ENTRIES)
        defaults = _default_runs(standing, out, data_root, Path(scratch, "defaults"))
        print(write_league(runs, folder / "report", standing.title, name or None, defaults))


def _check_entry(method: str, names: list[str]) -> None:
    if method and method not in names:
        raise UserError(f"there is no entry of a method {method!r}.{did_you_mean(method, names)}")


@app.command()
def compare(
    old: Annotated[Path, typer.Argument(metavar="OLD", help="A folder of entries (.tar.xz).")],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="Another one, with entries of the same names.")],
) -> None:
    """Compare the ranks of two folders of entries. Nothing is written."""
    from bench.results.pack import unpack
    from reports.league.compare import compare_leagues
    from reports.tables.table import to_markdown

    with _scratch() as scratch:
        unpacked: list[list[Path]] = []
        for number, folder in enumerate((old, new)):
            files = sorted(check_folder(folder, "folder of entries").glob(f"*{SUFFIX}"))
            if not files:
                raise UserError(f"{folder} has no entries (*{SUFFIX}): give a folder of them")
            unpacked.append([Path(scratch, str(number), file.name) for file in files])
            for file, run in zip(files, unpacked[-1], strict=True):
                unpack(file, run)
        for table in compare_leagues(*unpacked):
            print(to_markdown(table))
        end_if_damaged(*(run for runs in unpacked for run in runs))


@app.command()
def export(
    method: Annotated[
        str,
        typer.Option(
            metavar="NAME_OR_FILE", help="A method's id or file; without it the whole league.", show_default=False
        ),
    ] = "",
    tier: Tier = "small",
    league: League = STANDING,
    division: DivisionOption = "tuned",
    plugin: PluginFiles = None,
    out: Out = None,
    data_root: DataRoot = Path("data"),
) -> None:
    """Make a folder to publish an entry, or all of them. One entry has method, settings, environment, tables, citation
    and checklist; all entries, without --method, have one table of results and Croissant metadata."""
    from reports.league.export import write_export

    standing = LeagueTier(league, tier, division)
    folder, name = standing.folder(out), _load(method, plugin)
    if not name:
        _export_all(standing, folder, data_root)
        return
    entry = _packed(folder, name, method)
    with _scratch() as scratch:
        [unpacked] = _admitted(standing.admission(data_root, whole=False), [entry], Path(scratch))
        target = folder / "export" / name
        warnings = write_export(entry, unpacked, folder / "report", target, standing.name)
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    print(target)


def _export_all(standing: LeagueTier, folder: Path, data_root: Path) -> None:
    """Archive the shipped entries and those in a folder.

    Raises:
        UserError: one of them breaks the league's rules, or there is none.
    """
    from reports.league.archive import write_archive

    if not (files := [*standing.shipped, *standing.entries(folder)]):
        raise UserError(NO_ENTRIES)
    with _scratch() as scratch:
        runs = _admitted(standing.admission(data_root), files, Path(scratch))
        entries = dict(zip(files, runs, strict=True))
        print(write_archive(entries, folder / "archive", standing.title, f"{standing.league}.0.0"))


def _load(method: str, plugins: list[Path] | None) -> str:
    """Load the plug-in files and return the method's name; if `method` is a file, that of the method it registers."""
    load_plugins(plugins)
    if not method.endswith(".py"):
        return method
    check_file(Path(method))  # what is not there is refused before torch is imported
    from bench.conformance.suite import load

    names = load(Path(method))
    if len(names) > 1:
        raise UserError(
            f"{method} registers {len(names)} methods: choose one, for instance --method {names[0]} --plugin {method}"
        )
    return names[0]


@app.command()
def submit(
    method: MethodOption,
    tier: Tier = "small",
    league: League = STANDING,
    division: DivisionOption = "tuned",
    plugin: PluginFiles = None,
    out: Out = None,
    cells: Annotated[int, typer.Option(min=1, help="How many cells to compute again.")] = 3,
    jobs: Annotated[int | None, typer.Option(min=1, help="Cells side by side; default: one per core.")] = None,
    data_root: DataRoot = Path("data"),
) -> None:
    """Make what a pull request needs: its entry, plug-in and environment, and the output of a verification."""
    from reports.league.export import write_submission

    standing = LeagueTier(league, tier, division)
    folder, name = standing.folder(out), _load(method, plugin)
    entry = _packed(folder, name, method)
    with _scratch() as scratch:
        [unpacked] = _admitted(standing.admission(data_root), [entry], Path(scratch))
        submission = write_submission(
            entry, unpacked, folder / "submit" / name, standing.name, cells=cells, jobs=jobs, data_root=data_root
        )
    print(submission)


def _packed(folder: Path, name: str, method: str) -> Path:
    """The file of a method's entry, as `run` packs it.

    Raises:
        UserError: there is none.
    """
    entry = folder / f"{name}{SUFFIX}"
    if not entry.exists():
        raise UserError(f"there is no {entry}: `bench league run --method {method}`, with the same options, makes it")
    return entry


def _default_runs(standing: LeagueTier, out: Path | None, data_root: Path, scratch: Path) -> "list[RunView] | None":
    """Entries of the default division that a page of tuned ones compares with; None: league-1, without first answers.

    They lie beside the tuned ones' folder, which `--out` may name, and with the harness.
    """
    if standing.division == "default" or not standing.has_defaults:
        return None if standing.league == "1" else []
    other = LeagueTier(standing.league, standing.tier, "default")
    folder = Path("runs") / other.name if out is None else out.with_name(f"{out.name}_default")
    return _admitted(other.admission(data_root), [*other.entries(folder), *other.shipped], scratch)


def _admitted(admission: "Admission", files: Iterable[Path], scratch: Path) -> "list[RunView]":
    """Admit entries, each once, and return their runs, unpacked in `scratch`."""
    from bench.results.pack import unpack
    from bench.runs.progress import steps

    runs = []
    unique_files = list({file.resolve(): file for file in files}.values())
    with steps("reading entries") as step:
        for number, file in enumerate(unique_files):
            step(f"{file.name}, {number + 1} of {len(unique_files)}")
            admission.admit(file, run := unpack(file, scratch / f"{number:03d}" / file.name))
            runs.append(run)
    return runs
