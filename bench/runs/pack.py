"""A run as one small file to publish: what its cells found, without checkpoints, logs and locks (docs/verify.md)."""

import io
import json
import lzma
import tarfile
from pathlib import Path

from bench.errors import UserError
from bench.runs.results import load_run
from bench.runs.store import COLUMNS, FINISHED

SUFFIX = ".tar.xz"
LEFT_OUT = ("timeline", "hits")
"""Tables that are not packed: they would be most of the file, and the ledger has the seconds of every round, the table
of clients how many samples were right."""
FILES = (
    "settings.json", "status.json", "timing.json", "partition.json",
    *(f"{name}.csv" for name in COLUMNS if name not in LEFT_OUT),
)  # fmt: skip
"""What is packed of a finished cell, beside the `relations.json` that some methods leave."""
TUNING = Path("report", "tables", "tuning.csv")
"""Budgets and chosen settings of a sweep."""
TRIALS = "trials_*.csv"
"""Beside it: the trials of each method and task, in the order of its rows."""


def pack(run: Path, file: Path) -> int:
    """Pack the finished cells of a run; the same cells give the same bytes. Returns how many cells there are.

    Trials of a sweep have no test figures and are left out; the tables of budgets, chosen settings and trials that the
    sweep's report made are packed in their place.

    Raises:
        UserError: it is not a run, or none of its cells has finished.
    """
    view = load_run(run)
    reported = [cell for cell in view.cells if cell.settings.protocol != "tuning"]
    finished = {cell.id: cell for cell in reported if cell.status.state in FINISHED}
    if not finished:
        raise UserError(f"{run}: none of its {len(reported)} cells has finished, so there is nothing to pack")
    kept = {cell.id for cell in reported}
    info = {key: value for key, value in view.info.items() if key != "history"}
    info["machine"] = {key: value for key, value in view.info["machine"].items() if key != "host"}
    info["cells"] = [entry for entry in view.info["cells"] if entry["id"] in kept]
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.PAX_FORMAT) as archive:
        _add(archive, "run.json", json.dumps(info, indent=1, ensure_ascii=False).encode())
        tables = (run / TUNING).parent
        for table in (tables / TUNING.name, *sorted(tables.glob(TRIALS), key=lambda path: (len(path.name), path.name))):
            if table.exists():
                _add(archive, table.name, table.read_bytes())
        for name in (*FILES, "relations.json"):  # files of a kind beside each other: they compress each other
            for id in sorted(finished):
                if (path := finished[id].folder / name).exists():
                    _add(archive, f"{id}/{name}", _status(path) if name == "status.json" else path.read_bytes())
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(lzma.compress(content.getvalue(), preset=6))
    return len(finished)


def _status(file: Path) -> bytes:
    """A cell's status without the checksums of the tables that are not packed."""
    status = json.loads(file.read_bytes())
    for name in LEFT_OUT:
        status["checksums"].pop(name, None)
    return json.dumps(status, indent=1).encode()


def unpack(file: Path, folder: Path) -> None:
    """Make a run folder of a packed run.

    Raises:
        UserError: the file is no packed run, or something lies in the folder.
    """
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty: give another folder")
    try:
        with tarfile.open(file, "r:xz") as archive:
            archive.extractall(folder, filter="data")
    except (OSError, EOFError, lzma.LZMAError, tarfile.TarError) as error:
        raise UserError(f"{file} is not a packed run ({error}); `bench pack RUN` makes one") from None
    load_run(folder)


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    """Without times and owners, which would make other bytes of the same results."""
    info = tarfile.TarInfo(name)
    info.size = len(content)
    archive.addfile(info, io.BytesIO(content))
