"""`bench peer`: a method here beside another library's code for it, on the same data, batches and initial values."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bench.cli.commands import Commands, PluginFiles, load_plugins
from bench.errors import UserError
from bench.runs.options import DataRoot

if TYPE_CHECKING:
    from bench.settings import Settings

app = Commands(
    name="peer", help="A method here beside another library's code for it: where do the two part?", no_args_is_help=True
)

_DEFAULTS = {"nc": 10, "lr": 0.05}
"""Arguments of PFLlib's `main.py` that are others where they are not given: what suits a few rounds of small data."""


@app.command()
def pfllib(
    checkout: Annotated[Path, typer.Argument(metavar="CHECKOUT", help="A folder with PFLlib's repository.")],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- ARGUMENT...]", help="Arguments of PFLlib's `main.py`, after `--`."),
    ] = None,
    algo: Annotated[str, typer.Option(metavar="NAME", help="PFLlib's algorithm, such as `Ditto`.")] = "FedAvg",
    rounds: Annotated[int, typer.Option(min=1, help="Rounds that are compared.")] = 3,
    client: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A client of your own, derived from PFLlib's `Client`.")
    ] = None,
    server: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A server of your own, derived from PFLlib's `Server`.")
    ] = None,
    method: Annotated[
        str, typer.Option(metavar="ID", help="The method here; default: the one that stands for the algorithm.")
    ] = "",
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting of the cell here; repeatable.")
    ] = None,
    plugin: PluginFiles = None,
    data_root: DataRoot = Path("data"),
) -> None:
    """Train with PFLlib's own classes and here, and name the first round, client and step in which they differ.

    The exit status is 1 if they differ. The data are scikit-learn's digits unless `--set` names others.
    """
    load_plugins(plugin)
    if not (checkout / "system" / "main.py").is_file():
        raise UserError(f"{checkout} is no checkout of PFLlib: it has no system/main.py")
    if (client is None) != (server is None) or (client and not method):
        raise UserError("--client, --server and --method go together: the classes, and the method here beside them")
    words, cell = pair(algo, rounds, arguments or [], method, set_ or [], plugin or [])
    from bench.peer.compare import beside_pfllib
    from bench.peer.pfllib import OUTSIDE

    likeness = beside_pfllib(cell, data_root, checkout, words, [path for path in (server, client) if path])
    print(f"{server or algo} of PFLlib beside `{cell.method}` here; PFLlib's arguments: {shlex.join(words)}")
    print(f"from outside PFLlib: {'; '.join(OUTSIDE)}\n")
    print(f"largest difference of outputs ({', '.join(likeness.models)}):")
    for round, value in enumerate(likeness.differences):
        print(f"  after {round} rounds  {value:.1e}")
    if likeness.equal:
        print("equal")
        return
    print(f"they part in {likeness.place}")
    nothing = "no single other choice that the method or the cell declares"
    print(f"equal under: {'; '.join(likeness.equal_under) or nothing}")
    raise typer.Exit(1)


def pair(
    algorithm: str, rounds: int, arguments: list[str], method: str, overrides: list[str], plugins: list[Path]
) -> tuple[list[str], "Settings"]:
    """The arguments of PFLlib's `main.py`, and the cell that computes what they say, on digits.

    Raises:
        UserError: there is no such cell.
    """
    words = [f"-algo={algorithm}", f"-gr={rounds}", *(f"-{name}={value}" for name, value in _DEFAULTS.items())]
    words += arguments
    from bench.cli.from_pfllib import translate
    from bench.config.grid import load_grid

    grid, _ = translate(words, Path("dataset"))
    digits: dict[str, Any] = {
        "datasets": ["digits"], "partition": "dirichlet", "alphas": [0.5], "clients": grid["datasets"][0]["first"],
        "model": "mlp", "model_options": {"hidden": 32}, "dtype": "float64", "plugins": [str(path) for path in plugins],
    }  # fmt: skip
    grid = {key: value for key, value in grid.items() if key not in ("partition_options", "seeds", "precision")}
    grid |= digits | ({"methods": [method]} if method else {})
    return words, load_grid({**grid, "seeds": [0]}, overrides).cells[0]
