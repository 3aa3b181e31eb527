"""The league's own entries: they lie in a checkout, and other installations fetch them once, in one release file."""

import hashlib
import json
import os
import tarfile
import tempfile
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import bench
from bench.errors import UserError
from bench.places import cache_folder
from bench.results.pack import SUFFIX

CHECKOUT = Path(__file__).resolve().parent / "entries"
RELEASE = Path(__file__).with_name("release.json")
"""Where the release file is published, and its checksum."""
_SECONDS = 60
"""Until a server that does not answer is given up."""


@dataclass(frozen=True)
class Release:
    """The release file of this version's entries.

    Attributes:
        url: its address.
        sha256: its checksum, in hexadecimal digits.
    """

    url: str
    sha256: str

    @classmethod
    def read(cls) -> "Release":
        """Read it from `RELEASE`."""
        about = json.loads(RELEASE.read_text(encoding="utf-8"))
        return cls(about["url"].format(version=bench.__version__), about["sha256"])

    @property
    def name(self) -> str:
        """The file's name."""
        return self.url.rpartition("/")[2]


def shipped(study: str) -> list[Path]:
    """List the entries of a study; where they are not there yet, the release file is fetched.

    Raises:
        UserError: it cannot be fetched, or is not that of this version.
    """
    folder = CHECKOUT if CHECKOUT.is_dir() else _fetched(Release.read())
    return sorted((folder / study).glob(f"*{SUFFIX}"))


def shown(entry: Path) -> str:
    """The path of a shipped entry in a command: in a checkout from its root."""
    root = CHECKOUT.parents[2]
    return str(entry.relative_to(root) if entry.is_relative_to(root) else entry)


def _fetched(release: Release) -> Path:
    """The folder in the user's cache with the release's entries."""
    cache = cache_folder()
    folder, file = cache / f"league-{release.sha256[:16]}", cache / release.name
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    content = file.read_bytes() if file.exists() else _downloaded(release, file)
    if (checksum := hashlib.sha256(content).hexdigest()) != release.sha256:
        where = file if file.exists() else release.url
        raise UserError(
            f"{where} has not this version's league entries: its SHA256 is {checksum}, not {release.sha256}"
        )
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        packed, unpacked = Path(scratch, "packed"), Path(scratch, "unpacked")
        packed.write_bytes(content)
        with tarfile.open(packed) as archive:
            archive.extractall(unpacked, filter="data")
        os.replace(unpacked, folder)
    return folder


def _downloaded(release: Release, file: Path) -> bytes:
    try:
        with urllib.request.urlopen(release.url, timeout=_SECONDS) as answer:
            content: bytes = answer.read()
    except (urllib.error.URLError, OSError) as error:
        raise UserError(
            f"the league's entries are not here, and {release.url} cannot be fetched ({error}). Put that file into "
            f"{file.parent}, for instance by `curl -L --create-dirs -o {file} {release.url}` where there is a network, "
            "and run the command again"
        ) from None
    return content
