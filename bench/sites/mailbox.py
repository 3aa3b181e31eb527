"""Messages as files: a folder that the server and one site share, in which either may stop and start again.

It is a runtime for one machine, for tests, and for sites that can only exchange files.
"""

import logging
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.child_processes import safe_path
from bench.errors import UserError
from bench.sites.job import JOB, SiteJob
from bench.sites.messages import digest
from bench.sites.rehearsal import folders
from bench.sites.server import SERVER, Absent
from bench.store import inside

log = logging.getLogger(__name__)

_REQUEST, _ANSWER = "request", "answer"
_PAUSE = 0.05  # seconds between two looks


def folder_of(box: Path, site: int) -> Path:
    """The folder that the server shares with a site."""
    return box / f"site-{site}"


class _Letter:
    """A file that the other end replaces, and that is read once each time: only if its date has changed.

    Args:
        limit: most bytes that are read; None: any.
    """

    def __init__(self, path: Path, limit: int | None) -> None:
        self._path = path
        self._limit = limit
        self._seen: tuple[int, int, int] | None = None

    def new(self) -> bytes | None:
        """The content if it is new.

        Raises:
            UserError: something else than a plain file is there, or a larger one.
            OSError: it cannot be read.
        """
        try:
            status = self._path.lstat()
        except FileNotFoundError:
            return None
        seen = status.st_ino, status.st_mtime_ns, status.st_size
        if seen == self._seen:
            return None
        self._seen = seen
        return inside.read_bytes(self._path, self._limit)


class MailboxHub:
    """The server's end of all mailboxes.

    Args:
        box: folder of all mailboxes.
        patience: seconds after which a site that has not answered is left out.
        limit: bytes of the largest answer; None: any.
    """

    def __init__(self, box: Path, patience: float, limit: int | None = None) -> None:
        self._box = box
        self._patience = patience
        self._limit = limit

    def ask(self, requests: Mapping[int, bytes]) -> dict[int, bytes | Absent]:
        """Write the requests, and look for their answers. A mailbox that is none is that of an absent site."""
        answers: dict[int, bytes | Absent] = {}
        letters, names = {}, {i: digest(request).encode() for i, request in requests.items()}
        for i, request in requests.items():
            folder = folder_of(self._box, i)
            letters[i] = _Letter(folder / _ANSWER, self._limit)
            try:
                inside.make_folder(folder, folder)
                inside.replace(folder / _REQUEST, request)
            except (UserError, OSError) as error:
                answers[i] = Absent(str(error))
        end = time.monotonic() + self._patience
        while True:
            for i in requests.keys() - answers.keys():
                try:
                    name, _, body = (letters[i].new() or b"").partition(b"\n")
                except (UserError, OSError) as error:
                    answers[i] = Absent(str(error))
                else:
                    if name == names[i]:
                        answers[i] = body
            if len(answers) == len(requests) or time.monotonic() > end:
                break
            time.sleep(_PAUSE)
        return {i: answers.get(i, Absent(f"no answer in {self._patience:g} seconds")) for i in requests}


class MailboxLink:
    """A site's end of its mailbox.

    Args:
        limit: bytes of the largest request; None: any.
    """

    def __init__(self, box: Path, site: int, limit: int | None = None) -> None:
        self._folder = folder_of(box, site)
        inside.make_folder(self._folder, self._folder)
        self._letter = _Letter(self._folder / _REQUEST, limit)
        self._last = ""

    def receive(self) -> bytes:
        """Wait for a request. The first is one that an earlier process may have answered: it may be the job's last."""
        problem = ""
        while True:
            try:
                body = self._letter.new()
            except (UserError, OSError) as error:
                body = None
                if str(error) != problem:
                    problem = str(error)
                    log.warning("waiting for the server's next message: %s", problem)
            if body is not None and (name := digest(body)) != self._last:
                self._last = name
                return body
            time.sleep(_PAUSE)

    def send(self, body: bytes) -> None:
        """Write the answer to the request that came last."""
        inside.replace(self._folder / _ANSWER, self._last.encode() + b"\n" + body)


def run_processes(jobs: Path, work: Path, patience: float) -> None:
    """Run a job over mailboxes: a process for the server and one for each site.

    Args:
        jobs: the job's folder.
        work: folder with a folder for each site, where its samples are.
        patience: seconds after which a silent site is left out of a round.

    Raises:
        UserError: the server has failed.
    """
    job = SiteJob.load(jobs / JOB)
    common = [str(jobs), "--box", str(work / "box")]
    sites = [
        _start(["join", *common, "--site", str(i), "--folder", str(folder)], work / f"site-{i}.log")
        for i, folder in zip(job.sites, folders(work, job), strict=True)
    ]
    try:
        server = _start(
            ["serve", *common, "--folder", str(work / SERVER), "--patience", f"{patience:g}"], work / "server.log"
        )
        if server.wait():
            last = (work / "server.log").read_text(encoding="utf-8").strip().rpartition("\n")[2]
            raise UserError(f"the server has failed: {last}")
        for site in sites:
            site.wait(patience)
    finally:
        for site in sites:
            site.kill()
            site.wait()


def _start(arguments: Sequence[str], log: Path) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "bench.cli", "sites", *arguments]
    with log.open("wb") as file:
        return subprocess.Popen(command, stdout=file, stderr=file, env={**os.environ, **safe_path()})
