"""One cell, from its settings to its finished folder.

`python -m bench.runs.cell CONFIG.json` runs one where only torch, numpy, pandas, PyYAML and pydantic are installed; the
file holds `{"settings": {...}, "folder": "...", "options": {...}}` as `CellConfig` describes it.
"""

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from bench.plugin import load_file
from bench.runs.attempt import Attempt, FindHelpers
from bench.runs.cell_options import Options
from bench.runs.events import Event
from bench.runs.progress import figures_text
from bench.settings import Settings
from bench.store import inside, store
from bench.store.store import Status


class CellConfig(BaseModel):
    """Content of the file that `python -m bench.runs.cell` reads."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    settings: Settings
    folder: Path
    options: Options = Options()


def run_cell(
    settings: Settings,
    folder: Path,
    options: Options,
    report: Callable[[Event], None] = lambda event: None,
    stop: Callable[[], bool] = lambda: False,
    helpers: FindHelpers | None = None,
) -> Status:
    """Run one cell to its end, or until `stop()` is true at a version boundary.

    A finished cell is left alone; a half-done one goes on from its checkpoint. A failure ends in the status and in
    `error.txt`, never in an exception, so that one cell cannot stop the others.

    Args:
        folder: the cell's; it need not exist.
        report: takes each event of the cell.
        stop: asked after each server version; true ends the run.
        helpers: finds other devices for the cell, given its recorded path.

    Raises:
        bench.store.store.BusyError: another process works on the cell.
        UserError: the folder is a link, or a folder stands where the lock should be.
        bench.errors.Lost: a helper is no more; the folder is that of a cell whose process was killed.
    """
    for file in options.plugins:
        load_file(file)
    inside.make_folder(folder.parent, folder)
    with store.locked(folder):
        store.remove_temporaries(folder)
        status = store.read_status(folder, settings)
        if status.state in store.FINISHED:
            store.remove_leftovers(folder, status)
            report(Event(folder.name, status.state, status.rounds, status.total, text="finished before"))
            return status
        has_begun = status.state != "waiting" or (folder / "checkpoint").exists()
        if has_begun and store.identity_fault(folder, status, settings):
            store.clear(folder, keep=("lock", "log.txt"))  # or another cell's checkpoint would be gone on with
        for name in ("error.txt", "samples.json", "relations.json", "privacy.json", "evaluated.csv"):
            (folder / name).unlink(missing_ok=True)
        store.write_json(folder / "settings.json", settings.model_dump())
        with _logged(folder / "log.txt"):
            return Attempt(settings, folder, options, report, stop, helpers).run()


@contextlib.contextmanager
def _logged(path: Path) -> Iterator[None]:
    """Send log records and Python warnings to a cell's `log.txt`."""
    stream = inside.append(path)
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    root = logging.getLogger("bench")
    level = root.level
    root.setLevel(logging.INFO)
    root.addHandler(handler)
    logging.getLogger("py.warnings").addHandler(handler)
    logging.captureWarnings(True)
    try:
        yield
    finally:
        logging.captureWarnings(False)
        logging.getLogger("py.warnings").removeHandler(handler)
        root.removeHandler(handler)
        root.setLevel(level)
        handler.close()
        stream.close()


def main(arguments: list[str]) -> int:
    """Run the cell of a configuration file; exit status 0 when it is done, 2 for a bad configuration, else 1."""
    if len(arguments) != 1:
        print("usage: python -m bench.runs.cell CONFIG.json", file=sys.stderr)
        return 2
    try:
        config = CellConfig.model_validate_json(Path(arguments[0]).read_bytes())
    except (OSError, ValidationError) as error:
        print(f"{arguments[0]}: {error}", file=sys.stderr)
        return 2
    try:
        status = run_cell(config.settings, config.folder, config.options, report=_print_event)
    except store.BusyError as error:
        print(error, file=sys.stderr)
        return 1
    return 0 if status.state == "done" else 1


def _print_event(event: Event) -> None:
    parts = (f"{event.state}: round {event.round}/{event.rounds}", figures_text(event.figures), event.text)
    print(", ".join(part for part in parts if part), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
