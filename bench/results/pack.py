"""A run as one small file to publish: results of its cells, without checkpoints, logs and locks (docs/verify.md)."""

import io
import itertools
import json
import lzma
import re
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.errors import UserError
from bench.places import check_file, check_output_file, check_output_folder
from bench.results.results import RunView, load_run
from bench.store import inside
from bench.store.documents import read_json
from bench.store.store import COLUMNS, FINISHED, RECORDS

SUFFIX = ".tar.xz"
LEFT_OUT = ("timeline", "hits")
"""Tables that are not packed: they would be most of the file, and the ledger has the seconds of every round, the table
of clients how many samples were right."""
RELATIONS = "relations.json"
PACKED = (
    "settings.json", "status.json", "timing.json", "partition.json",
    *(f"{name}.csv" for name in COLUMNS if name not in LEFT_OUT),
    RELATIONS, "privacy.json", "evaluated.csv",
)  # fmt: skip
"""What is packed of a finished cell; not every cell has all of them."""
_TEXTS = [{"id": lzma.FILTER_LZMA2, "preset": 6 | lzma.PRESET_EXTREME, "lc": 4, "lp": 0, "pb": 0}]
"""Compression of texts: 3 % smaller than by the preset alone."""
MOST_FILES, MOST_BYTES = 50_000, 2_000_000_000
"""Limits of an archive, as a small one may hold any number of bytes."""
TUNING = Path("report", "tables", "tuning.csv")
"""Budgets and chosen settings of a sweep."""
TRIALS = "trials_*.csv"
"""Beside it: the trials of each method and task, in the order of its rows."""
SHARED = "partitions.json.xz"
"""The file: texts of `partition.json` by their checksums, which the cells' `status.json` has."""
RECORD = "partition.json"
MODELS = "models"
_MODEL = rf"{MODELS}/(gm|pm)/[0-9]{{8}}/([a-z0-9-]{{1,40}}\.pt|state\.json|manifest\.json)"
_MEMBER = re.compile(rf"run\.json|tuning\.csv|trials_[0-9]{{1,9}}\.csv|[0-9a-f]{{16}}/({'|'.join(PACKED)}|{_MODEL})")


def pack(run: Path, file: Path, *, models: bool = False) -> int:
    """Pack the finished cells of a run; the same cells give the same bytes. Returns how many cells there are.

    Trials of a sweep have no test figures and are left out; the tables of budgets, chosen settings and trials that the
    sweep's report made are packed in their place.

    Args:
        run: the run folder.
        file: the file to write.
        models: whether to pack the models that `--keep best` kept, too.

    Raises:
        UserError: it is not a run, or none of its cells has finished; or none has models, which were asked for.
    """
    view = load_run(run)
    check_output_file(file)
    reported = [cell for cell in view.cells if cell.settings.protocol != "tuning"]
    finished = {cell.id: cell for cell in reported if cell.status.state in FINISHED}
    if not finished:
        raise UserError(f"{run}: none of its {len(reported)} cells has finished, so there is nothing to pack")
    kept = {cell.id for cell in reported}
    info = {key: value for key, value in view.info.items() if key != "history"}
    if isinstance(machine := info.get("machine"), dict):
        info["machine"] = {key: value for key, value in machine.items() if key != "host"}
    info["cells"] = [entry for entry in view.info["cells"] if entry["id"] in kept]
    folders = {id: finished[id].folder for id in sorted(finished)}
    members = itertools.chain(_results(run, info, folders), _models(run, list(folders.values())) if models else ())
    content = archived(members)
    file.parent.mkdir(parents=True, exist_ok=True)
    inside.replace(file, content)
    return len(finished)


def _results(run: Path, info: Mapping[str, Any], folders: Mapping[str, Path]) -> Iterator[tuple[str, bytes]]:
    """Names and contents of a run's own files, its tables of tuning, and the files of its cells."""
    yield "run.json", json.dumps(info, indent=1, ensure_ascii=False).encode()
    tables = (run / TUNING).parent
    for table in (tables / TUNING.name, *sorted(tables.glob(TRIALS), key=lambda path: (len(path.name), path.name))):
        if inside.is_file(table):
            yield table.name, inside.read_bytes(table)
    for name in PACKED:  # files of a kind beside each other: they compress each other
        for id, folder in folders.items():
            if inside.is_file(path := folder / name):
                yield f"{id}/{name}", _status(path) if name == "status.json" else inside.read_bytes(path)


def _models(run: Path, folders: Sequence[Path]) -> Iterator[tuple[str, bytes]]:
    """Names and contents of the models of the reported rounds.

    Raises:
        UserError: no cell has any.
    """
    files = [path for folder in folders for path in sorted(folder.glob(f"{MODELS}/*/*/*")) if inside.is_file(path)]
    names = {path: path.relative_to(run).as_posix() for path in files}
    chosen = [path for path in files if _MEMBER.fullmatch(names[path])]
    if not chosen:
        raise UserError(f"{run}: no cell has models; `bench run --fresh --keep best` runs cells again with theirs")
    for path in chosen:
        yield names[path], inside.read_bytes(path)


def _status(file: Path) -> bytes:
    """A cell's status without the checksums of the files that are not packed."""
    return without_checksums(read_json(file), [*LEFT_OUT, *(record for record in RECORDS if record not in PACKED)])


def without_checksums(status: dict[str, Any], names: Iterable[str]) -> bytes:
    """A status as text, without the checksums of these files."""
    for name in names:
        status.get("checksums", {}).pop(name, None)
    return json.dumps(status, indent=1).encode()


def archived(members: Iterable[tuple[str, bytes]]) -> bytes:
    """Pack files of these names and contents: the same results give the same bytes."""
    return lzma.compress(_tar(members), filters=_TEXTS)


def _tar(members: Iterable[tuple[str, bytes]]) -> bytes:
    """An archive of files without times and owners."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return packed.getvalue()


def unpack(file: Path, folder: Path) -> RunView:
    """Make a run folder of a packed run, and read it; only files that `pack` writes are taken, nothing else is written.

    Partitions that are not in it are taken from the file `SHARED` beside it.

    Raises:
        UserError: the file is no packed run, holds anything else or too much, a partition is missing, or something
            lies in the folder.
    """
    check_file(file, "packed run", "`bench pack RUN` makes one")
    check_output_folder(folder, "", empty=True)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        for name, content in _contents(file).items():
            inside.make_folder(folder, (folder / name).parent)
            inside.replace(folder / name, content, durable=False)
        _restore(folder, file.parent)
        return load_run(folder)
    except BaseException as error:
        for path in folder.iterdir():
            inside.remove(path)
        if isinstance(error, UserError):  # the file is what the user knows, and the folder may be a temporary one
            raise UserError(str(error).replace(str(folder), str(file))) from None
        raise


def _contents(file: Path) -> dict[str, bytes]:
    """The contents of a packed run's files by name.

    Raises:
        UserError: it is none, or holds too much.
    """
    contents: dict[str, bytes] = {}
    try:
        packed = _decompressed(file)
        with tarfile.open(fileobj=io.BytesIO(packed), mode="r:") as archive:
            for member in archive:
                if len(contents) == MOST_FILES:
                    raise ValueError(_too_much())
                if not member.isreg() or not _MEMBER.fullmatch(member.name) or member.name in contents:
                    raise ValueError(f"{member.name[:60]!a} is in it, and `bench pack` writes no such file, or one")
                content = archive.extractfile(member)
                contents[member.name] = content.read() if content else b""
        if _tar(contents.items()) != packed:
            raise ValueError("it is not the archive that `bench pack` makes of its files")
    except (EOFError, ValueError, lzma.LZMAError, tarfile.TarError) as error:
        raise UserError(f"{file} is not a packed run ({error}); `bench pack RUN` makes one") from None
    return contents


def _too_much() -> str:
    return f"it holds more than {MOST_FILES} files or {MOST_BYTES / 1e9:g} GB"


def _decompressed(file: Path) -> bytes:
    """The content of a file that is a single .xz stream from its first byte to its last.

    Python's own reader skips what follows a stream: padding, further streams, anything. So one content could have any
    number of checksums.

    Raises:
        ValueError: it has more than `MOST_BYTES`.
        EOFError: the file ends before the stream does.
        lzma.LZMAError: it is damaged, or something follows the stream.
    """
    stream = lzma.LZMADecompressor(lzma.FORMAT_XZ)
    content = stream.decompress(file.read_bytes(), MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError(_too_much())
    if not stream.eof:
        raise EOFError("it is cut short")
    if stream.unused_data:
        raise lzma.LZMAError("something follows the end of its .xz stream")
    return content


def read_shared(folder: Path) -> dict[str, str]:
    """Read what the runs of a folder have in common; empty where nothing is.

    Raises:
        UserError: the file is damaged.
    """
    file = folder / SHARED
    if not file.exists():
        return {}
    try:
        texts = json.loads(_decompressed(file))
        if not isinstance(texts, dict) or not all(isinstance(text, str) for text in texts.values()):
            raise ValueError("it has no texts by their checksums")
    except (ValueError, EOFError, lzma.LZMAError) as error:
        raise UserError(
            f"{file} is damaged ({error}); take it anew from where the entries beside it are from"
        ) from None
    return texts


def compressed(texts: Mapping[str, str]) -> bytes:
    """Make the content of the file; the same texts give the same bytes."""
    return lzma.compress(json.dumps(dict(sorted(texts.items())), ensure_ascii=False).encode(), preset=6)


def checksum_in(status: bytes) -> str:
    """The checksum of a cell's partition in its `status.json`; empty where there is none, or the file is damaged."""
    try:
        checksum = json.loads(status)["checksums"][RECORD]
    except (ValueError, LookupError, TypeError, RecursionError):
        return ""
    return checksum if isinstance(checksum, str) else ""


def _restore(run: Path, folder: Path) -> None:
    """Give the cells of an unpacked run the partitions that lie in a folder and not in the run.

    Raises:
        UserError: a partition is in neither.
    """
    texts: dict[str, str] | None = None
    for status in sorted(run.glob("*/status.json")):
        record = status.with_name(RECORD)
        if record.exists() or not (checksum := checksum_in(status.read_bytes())):
            continue
        texts = read_shared(folder) if texts is None else texts
        if checksum not in texts:
            raise UserError(
                f"the partition of cell {status.parent.name} is not in the packed run: {SHARED} should lie beside it, "
                "as it does where the run is from"
            )
        inside.replace(record, texts[checksum].encode(), durable=False)
