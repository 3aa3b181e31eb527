"""`bench sites`: a cell at real sites, each in a process of its own with its own data (docs/sites.md)."""

import importlib
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from bench.cli.commands import Commands, Only, PluginFiles, load_plugins, print_table, starting
from bench.errors import UserError, optional
from bench.places import check_output_folder
from bench.runs.options import DataRoot

if TYPE_CHECKING:
    from bench.settings import Settings
    from bench.sites.server import Travelled

app = Commands(
    name="sites", help="A cell at real sites: one client, one process, and only its data.", no_args_is_help=True
)

CellArgument = Annotated[
    str, typer.Argument(metavar="CELL", help="A cell's folder in a run, or a grid file or name (with --only).")
]
JobFolder = Annotated[Path, typer.Argument(metavar="JOB", help="Folder of the job (`bench sites export`).")]
Box = Annotated[Path, typer.Option(help="Folder of the mailboxes, which the server shares with each site.")]
Patience = Annotated[float, typer.Option(min=0.0, help="Seconds after which a silent site is left out of a round.")]


@app.command()
def export(
    cell: CellArgument,
    out: Annotated[Path, typer.Option(help="Folder of the job; it must be empty or not there yet.")],
    only: Only = None,
    max_samples: Annotated[int, typer.Option(min=1, help="Most training samples that a site may say it has.")] = 10**6,
    max_update: Annotated[
        float,
        typer.Option(min=1.0, help="Largest value in a site's model, as a multiple of the largest that it was sent."),
    ] = 100.0,
    patience: Patience = 600.0,
    plugin: PluginFiles = None,
    data_root: DataRoot = Path("data"),
) -> None:
    """Write a job for sites, and say what leaves each in a round.

    A cell that needs more than a site's own samples and its messages is refused. Where NVIDIA FLARE is installed, its
    form of the job is in the folder `flare`.
    """
    flare = importlib.util.find_spec("nvflare") is not None
    _optional("flare" if flare else "files")
    settings = _settings(cell, only, plugin)
    with starting("Rehearsing the job on noise ...", quiet=False):
        from bench.sites.export import LOADER
        from bench.sites.export import export as write
        from bench.sites.job import Limits

        messages = write(settings, data_root, out, Limits(n_train=max_samples, update=max_update))
    if flare:
        importlib.import_module("bench.sites.flare").write_job(out, out / "flare", patience)
    print(f"{out}: {settings.name}, {settings.clients} sites, {settings.rounds} rounds. Fill in {out / LOADER}.\n")
    _print_messages(messages)


@app.command()
def serve(
    job: JobFolder,
    box: Box,
    folder: Annotated[Path, typer.Option(help="The server's folder, for checkpoints and the generic model.")],
    patience: Patience = 600.0,
    without: Annotated[list[int] | None, typer.Option(help="Leave a site out from now on (repeatable).")] = None,
    back: Annotated[
        bool, typer.Option(help="Go on from the checkpoint before the last one, which is removed.")
    ] = False,
    plugin: PluginFiles = None,
) -> None:
    """Run a job's server over mailboxes. The same command goes on where it was stopped."""
    _optional()
    load_plugins(plugin)
    from bench.sites.job import JOB, SiteJob
    from bench.sites.mailbox import MailboxHub
    from bench.sites.server import SitesServer

    loaded = SiteJob.load(job / JOB)
    hub = MailboxHub(box, patience, loaded.limit("up"))
    server = SitesServer(loaded, hub, folder, without=without or (), back=back)
    sizes = server.federation.server.sizes
    for i, n in sizes.items():
        print(f"site {i} says that it has {n} training samples, {n / sum(sizes.values()):.1%} of all", flush=True)
    server.run()
    for line in server.rounds.left_out:
        print(line)
    print(f"{server.federation.version} rounds are done: {folder}")


@app.command()
def join(
    job: JobFolder,
    box: Box,
    site: Annotated[int, typer.Option(min=0, help="The site's number.")],
    folder: Annotated[Path, typer.Option(help="The site's folder, for its state, its model and perhaps its samples.")],
    data: Annotated[Path | None, typer.Option(help="File that loads its samples; default: data.py of the job.")] = None,
    plugin: PluginFiles = None,
) -> None:
    """Run one site of a job. The same command goes on."""
    _optional()
    load_plugins(plugin)
    from bench.sites.export import LOADER, load_samples
    from bench.sites.job import JOB, SiteJob
    from bench.sites.mailbox import MailboxLink
    from bench.sites.site import SiteClient

    loaded = SiteJob.load(job / JOB)
    loaded.check_site(site)
    samples = load_samples(data or job / LOADER, folder, site)
    client, link = SiteClient(loaded, site, samples, folder), MailboxLink(box, site, loaded.limit("down"))
    while not client.finished:
        link.send(client.answer(link.receive()))


@app.command()
def check(
    cell: CellArgument,
    only: Only = None,
    runtime: Annotated[Literal["files", "flare"], typer.Option(help="What carries the messages.")] = "files",
    patience: Patience = 600.0,
    out: Annotated[Path | None, typer.Option(help="Keep all folders here; default: they are removed.")] = None,
    plugin: PluginFiles = None,
    data_root: DataRoot = Path("data"),
) -> None:
    """Run a job on this machine, each site a process, and compare it with the simulation."""
    import tempfile

    _optional(runtime)
    settings = _settings(cell, only, plugin)
    from bench.sites.export import export as write
    from bench.sites.export import write_samples
    from bench.sites.job import SiteJob
    from bench.sites.mailbox import run_processes
    from bench.sites.rehearsal import differences, folders, simulate

    with tempfile.TemporaryDirectory() as scratch:
        work = (check_output_folder(out, empty=True) if out else Path(scratch)).resolve()
        write(settings, data_root, work / "job")
        write_samples(settings, data_root, folders(work, SiteJob.load(work / "job" / "job.json")))
        if runtime == "flare":
            importlib.import_module("bench.sites.flare").run_processes(work / "job", work, patience)
        else:
            run_processes(work / "job", work, patience)
        different = differences(simulate(settings, data_root), work)
    if different:
        raise UserError(f"{settings.name}: not the bytes of the simulated cell: {', '.join(different)}")
    print(f"{settings.name}: models and ledger of {settings.clients} sites are the simulated cell's, byte by byte")


def _print_messages(messages: list["Travelled"]) -> None:
    """Print what one site receives and sends in the last round of a rehearsal."""
    import pandas as pd

    first = min(message.site for message in messages)
    rows = []
    for message in (message for message in messages if message.site == first):
        rest = {"(names, shapes, plain values)": message.whole - sum(message.tensors.values())}
        rows += [(message.direction, message.kind, *part) for part in (message.tensors | rest).items()]
    print_table(pd.DataFrame(rows, columns=["direction", "message", "tensor", "bytes"]), index=False)


def _optional(runtime: str = "files") -> None:
    """Refuse before anything is computed where a package is missing that messages, or their runtime, need."""
    optional("safetensors", "bench sites")
    if runtime == "flare":
        optional("nvflare.apis.executor", "--runtime flare")


def _settings(source: str, only: list[str] | None, plugin: list[Path] | None) -> "Settings":
    """The one cell that a folder or a grid names."""
    from bench.config.grid import load_grid
    from bench.settings import Settings
    from bench.store.documents import read_json

    load_plugins(plugin)
    if (Path(source) / "settings.json").is_file():
        return Settings.model_validate(read_json(Path(source) / "settings.json"))
    cells = load_grid(source).cells
    if only:
        from bench.runs.plan import select

        cells = select(cells, only)
    if len(cells) != 1:
        raise UserError(f"{source} has {len(cells)} cells: choose one, e.g. --only method={cells[0].method},seed=0")
    return cells[0]
