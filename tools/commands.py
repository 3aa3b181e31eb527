"""The cost of commands before they train: each runs in its own process, of this installation and of another one.

`python -m tools.commands [--beside BENCH] [--json FILE]` times what users wait for (docs/performance.md).
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pandas as pd

from bench.cli.commands import print_table
from bench.errors import UserError
from bench.places import check_output_file
from bench.runs.progress import steps
from bench.store import store
from bench.store.provenance import provenance
from tools import meter

HERE = "this one"
BESIDE = "the other"


@dataclass(frozen=True)
class TimedCommand:
    """A command that users wait for.

    Attributes:
        name: what the table calls it.
        arguments: of `bench`, or of Python where `python` is true.
        status: the exit status that it should have.
        repeats: how often it is run; the time with the fewest CPU seconds counts.
        python: whether Python runs it.
    """

    name: str
    arguments: tuple[str, ...]
    status: int = 0
    repeats: int = 3
    python: bool = False


@dataclass(frozen=True)
class CommandCost:
    """Time and memory that a command took, with all processes that it started.

    Attributes:
        cpu, wall: seconds, of the processors and on the clock.
        memory: peak of its largest process, in bytes.
        status: exit status; negative: the signal that ended it.
        over: whether it was ended at the limit, so that the figures are what it cost until then.
    """

    cpu: float
    wall: float
    memory: int
    status: int
    over: bool


GRIDS = {
    "misspelt.yaml": "methods: [fedavgg]\ndatasets: [digits]\nalphas: [1.0]\nclients: 20\nrounds: 10\nmodel: mlp\n",
    "two.yaml": "methods: [fedavg, local]\ndatasets: [digits]\nalphas: [1.0]\nseeds: [0]\nclients: 20\nrounds: 10\n"
    "model: mlp\n",
    "many.yaml": "methods: [fedavg, local, fedper, ditto, scd]\ndatasets: [digits]\nalphas: [1.0, 0.1]\n"
    f"seeds: {list(range(200))}\nclients: 20\nrounds: 10\nmodel: mlp\n",
}
"""The files that commands read, by name; they run in the folder in which these lie."""

COMMANDS = (
    TimedCommand("import bench", ("-c", "import bench"), python=True),
    TimedCommand("bench --help", ("--help",)),
    TimedCommand("bench methods", ("methods",)),
    TimedCommand("bench show", ("show", "quickstart.yaml")),
    TimedCommand("a misspelt method is refused", ("run", "--grid", "misspelt.yaml"), status=2),
    TimedCommand("a run of two cells", ("run", "--grid", "two.yaml", "--out", "two", "--no-tracking"), repeats=1),
    TimedCommand("bench status of two cells", ("status", "two")),
    TimedCommand("bench results of two cells", ("results", "two")),
    TimedCommand("bench report of two cells", ("report", "two")),
    TimedCommand("dry run of 2,000 small cells", ("run", "--grid", "many.yaml", "--dry-run"), repeats=1),
    TimedCommand("dry run of table1", ("run", "--grid", "table1", "--dry-run"), repeats=1),
    TimedCommand("dry run of table4", ("run", "--grid", "table4", "--dry-run"), repeats=1),
    TimedCommand("the league's page", ("league", "report", "--out", "league"), repeats=1),
)
"""In their order: the run of two cells is what later ones read."""


def measure_commands(
    commands: Sequence[TimedCommand],
    installations: Mapping[str, Path],
    limit: float,
    folder: Path,
    step: Callable[[str], None],
    *,
    repeats: int | None = None,
) -> dict[str, dict[str, CommandCost]]:
    """Costs by command and installation. Installations take turns, so that a busy machine is so for all of them.

    Args:
        commands: in the order in which they run.
        installations: by the names in the result, the file `bench` of each, beside which its `python` lies.
        limit: seconds on the clock after which a command is ended; it is not repeated then.
        folder: empty; each installation gets a folder in it, with `GRIDS`, in which its commands run.
        step: is told which command runs.
        repeats: at most so many for each command.
    """
    for name in installations:
        (folder / name).mkdir()
        for file, text in GRIDS.items():
            (folder / name / file).write_text(text, encoding="utf-8")
    costs: dict[str, dict[str, CommandCost]] = {}
    for count, command in enumerate(commands, start=1):
        step(f"command {count} of {len(commands)}: {command.name}")
        costs[command.name] = {}
        for _ in range(min(command.repeats, repeats or command.repeats)):
            for name, bench in installations.items():
                known = costs[command.name].get(name)
                if known is None or not known.over:
                    cost = cost_of(_words(command, bench), folder / name, limit)
                    costs[command.name][name] = min(known or cost, cost, key=lambda cost: cost.cpu)
    return costs


def installation(bench: Path) -> Path:
    """The file `bench` of an installation, as an absolute path.

    Raises:
        UserError: it is none, or there is no `python` beside it.
    """
    path = bench.absolute()
    for file in (path, path.with_name("python")):
        if not os.access(file, os.X_OK) or file.is_dir():
            raise UserError(f"{file} is no program: give the file `bench` of an environment, such as .venv/bin/bench")
    return path


def cost_of(command: Sequence[str], folder: Path, limit: float) -> CommandCost:
    """Run a command in a folder.

    Bytecode is kept, whatever the environment says, as a user's second command finds it.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    metered = [sys.executable, "-I", meter.__file__, str(limit), *command]
    done = subprocess.run(metered, cwd=folder, env=environment, stdout=subprocess.PIPE, check=True)
    return CommandCost(**json.loads(done.stdout))


def _words(command: TimedCommand, bench: Path) -> list[str]:
    program = bench.with_name("python") if command.python else bench
    return [str(program), *command.arguments]


def figures_text(cost: CommandCost, command: TimedCommand) -> tuple[str, str, str]:
    """CPU seconds, seconds on the clock and peak memory in MB as the table has them: `> 120` for what was ended."""
    if not cost.over and cost.status != command.status:
        return f"ended with {cost.status}", "–", "–"
    above = "> " if cost.over else ""
    return f"{above}{cost.cpu:.2f}", f"{above}{cost.wall:.2f}", f"{cost.memory / 1e6:.0f}"


def _print(costs: Mapping[str, Mapping[str, CommandCost]], names: Sequence[str], limit: float) -> None:
    print(
        "CPU s: seconds of the processors, of all processes of a command. s: on the clock. MB: peak of its "
        f"largest process. The best of up to three times; >: ended after {limit:g} s."
    )
    heads = [head if len(names) == 1 else f"{name}: {head}" for name in names for head in ("CPU s", "s", "MB")]
    rows = {
        command.name: [text for name in names for text in figures_text(costs[command.name][name], command)]
        for command in COMMANDS
    }
    print_table(pd.DataFrame.from_dict(rows, orient="index", columns=heads))


def main(arguments: Sequence[str] | None = None) -> None:
    """Time the commands of this installation and, in turns, of another one."""
    parser = argparse.ArgumentParser(prog="python -m tools.commands", description=main.__doc__)
    parser.add_argument("--beside", type=Path, metavar="BENCH", help="another environment's `bench`, in turns")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds after which a command is ended")
    parser.add_argument("--quick", action="store_true", help="each command once")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all as JSON")
    options = parser.parse_args(arguments)
    if options.json:
        check_output_file(options.json, "--json")
    installations = {HERE: installation(Path(sys.executable).with_name("bench"))}
    if options.beside:
        installations[BESIDE] = installation(options.beside)
    with tempfile.TemporaryDirectory() as folder, steps("commands") as step:
        repeats = 1 if options.quick else None
        costs = measure_commands(COMMANDS, installations, options.limit, Path(folder), step, repeats=repeats)
    if options.json:
        document = {command: {name: asdict(cost) for name, cost in row.items()} for command, row in costs.items()}
        store.write_json(options.json, {**provenance(), "limit": options.limit, "commands": document})
    _print(costs, list(installations), options.limit)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"tools.commands: {error}")
