"""Partitions that packed runs beside each other have in common, kept once in a file beside them.

Methods of a league are compared on the same partitions, whose records would be an eighth of every entry.
"""

import io
import json
import lzma
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.errors import UserError
from bench.store import inside

SHARED = "partitions.json.xz"
"""The file: texts of `partition.json` by their checksums, which the cells' `status.json` has."""
RECORD = "partition.json"
_MOST = 500_000_000  # bytes that a small file may become
_CHUNK = 1 << 16


class OneStream(io.RawIOBase):
    """The content of a file that is a single .xz stream from its first byte to its last.

    Python's own reader skips what follows a stream: padding, further streams, anything. So one content could have any
    number of checksums.
    """

    def __init__(self, file: Path) -> None:
        self._source = open(file, "rb")  # noqa: SIM115  # closed with this object
        self._packed = lzma.LZMADecompressor(lzma.FORMAT_XZ)

    def readable(self) -> bool:
        """Whether it can be read: always."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read what fits, and return its length.

        Raises:
            EOFError: the file ends before the stream does.
            lzma.LZMAError: it is damaged, or something follows the stream.
        """
        while not self._packed.eof:
            chunk = self._source.read(_CHUNK) if self._packed.needs_input else b""
            if self._packed.needs_input and not chunk:
                raise EOFError("it is cut short")
            if content := self._packed.decompress(chunk, len(buffer)):
                buffer[: len(content)] = content
                return len(content)
        if self._packed.unused_data or self._source.read(1):
            raise lzma.LZMAError("something follows the end of its .xz stream")
        return 0

    def close(self) -> None:
        """Close the file."""
        self._source.close()
        super().close()


def read_shared(folder: Path) -> dict[str, str]:
    """Read what the runs of a folder have in common; empty where nothing is.

    Raises:
        UserError: the file is damaged.
    """
    file = folder / SHARED
    if not file.exists():
        return {}
    try:
        with io.BufferedReader(OneStream(file)) as packed:
            texts = json.loads(packed.read(_MOST))
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


def restore(run: Path, folder: Path) -> None:
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
