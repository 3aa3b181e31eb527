"""Messages as files: a folder that the server and one site share, in which either may stop and start again.

It is a runtime for one machine, for tests, and for sites that can only exchange files.
"""

import time
from collections.abc import Mapping
from pathlib import Path

from bench.sites.messages import digest
from bench.sites.server import Absent
from bench.store import inside

_REQUEST, _ANSWER = "request", "answer"
PAUSE = 0.01
"""Seconds between two looks."""


def folder_of(box: Path, site: int) -> Path:
    """The folder that the server shares with a site."""
    return box / f"site-{site}"


class MailboxHub:
    """The server's end of all mailboxes.

    Args:
        box: folder of all mailboxes.
        patience: seconds after which a site that has not answered is left out.
    """

    def __init__(self, box: Path, patience: float) -> None:
        self._box = box
        self._patience = patience

    def ask(self, requests: Mapping[int, bytes]) -> dict[int, bytes | Absent]:
        """Write the requests, and look for their answers."""
        for i, request in requests.items():
            folder = folder_of(self._box, i)
            inside.make_folder(folder, folder)
            inside.replace(folder / _REQUEST, request)
        answers: dict[int, bytes | Absent] = {}
        end = time.monotonic() + self._patience
        while len(answers) < len(requests) and time.monotonic() < end:
            for i in requests.keys() - answers.keys():
                answer = _answer(folder_of(self._box, i) / _ANSWER, digest(requests[i]))
                if answer is not None:
                    answers[i] = answer
            time.sleep(PAUSE)
        return {i: answers.get(i, Absent(f"no answer in {self._patience:g} seconds")) for i in requests}


class MailboxLink:
    """A site's end of its mailbox."""

    def __init__(self, box: Path, site: int) -> None:
        self._folder = folder_of(box, site)
        inside.make_folder(self._folder, self._folder)
        self._last = ""

    def receive(self) -> bytes:
        """Wait for a request that is not answered yet."""
        while True:
            try:
                body = inside.read_bytes(self._folder / _REQUEST)
            except FileNotFoundError:
                body = b""
            name = digest(body)
            if body and name != self._last and _answer(self._folder / _ANSWER, name) is None:
                self._last = name
                return body
            time.sleep(PAUSE)

    def send(self, body: bytes) -> None:
        """Write the answer to the request that came last."""
        inside.replace(self._folder / _ANSWER, self._last.encode() + b"\n" + body)


def _answer(path: Path, request: str) -> bytes | None:
    """The answer to a request, if it is there."""
    try:
        name, _, body = inside.read_bytes(path).partition(b"\n")
    except FileNotFoundError:
        return None
    return body if name == request.encode() else None
