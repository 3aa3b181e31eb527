"""Partitions that packed runs beside each other have in common, kept once in a file beside them.

Methods of a league are compared on the same partitions, whose records would be an eighth of every entry.
"""

import json
import lzma
from collections.abc import Mapping
from pathlib import Path

from bench.errors import UserError
from bench.store import inside
from bench.store.documents import read_json

SHARED = "partitions.json.xz"
"""The file: texts of `partition.json` by their checksums, which the cells' `status.json` has."""
RECORD = "partition.json"


def read_shared(folder: Path) -> dict[str, str]:
    """Read what the runs of a folder have in common; empty where nothing is.

    Raises:
        UserError: the file is damaged.
    """
    file = folder / SHARED
    if not file.exists():
        return {}
    try:
        texts: dict[str, str] = json.loads(lzma.decompress(file.read_bytes()))
    except (ValueError, EOFError, lzma.LZMAError) as error:
        raise UserError(
            f"{file} is damaged ({error}); take it anew from where the entries beside it are from"
        ) from None
    return texts


def write_shared(folder: Path, texts: Mapping[str, str]) -> None:
    """Replace the file of a folder; the same texts give the same bytes."""
    content = json.dumps(dict(sorted(texts.items())), ensure_ascii=False).encode()
    inside.replace(folder / SHARED, lzma.compress(content, preset=6))


def restore(run: Path, folder: Path) -> None:
    """Give the cells of an unpacked run the partitions that lie in a folder and not in the run.

    Raises:
        UserError: a partition is in neither.
    """
    texts: dict[str, str] | None = None
    for status in sorted(run.glob("*/status.json")):
        record = status.with_name(RECORD)
        checksum = read_json(status).get("checksums", {}).get(RECORD)
        if checksum is None or record.exists():
            continue
        texts = read_shared(folder) if texts is None else texts
        if checksum not in texts:
            raise UserError(
                f"the partition of cell {status.parent.name} is not in the packed run: {SHARED} should lie beside it, "
                "as it does where the run is from"
            )
        inside.replace(record, texts[checksum].encode())
