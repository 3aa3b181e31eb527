"""A site behind a function: for runtimes that hand over one message and take one answer."""

import queue
import threading

from bench.sites.server import Absent
from bench.sites.site import SiteClient


class Threaded:
    """A site in a thread of its own, since its program may wait for a reply in the middle of a round."""

    def __init__(self, site: SiteClient) -> None:
        self.problem: BaseException | None = None
        self._requests: queue.Queue[bytes] = queue.Queue()
        self._answers: queue.Queue[bytes | Absent] = queue.Queue()
        threading.Thread(target=self._serve, args=(site,), daemon=True).start()

    def _serve(self, site: SiteClient) -> None:
        try:
            site.serve(self)
        except BaseException as error:  # whoever asks hears of it
            self.problem = error
            self.send(Absent(f"{type(error).__name__}: {error}"))

    def ask(self, request: bytes) -> bytes | Absent:
        """The site's answer to a message; that it is absent once it has failed."""
        if self.problem is not None:
            return Absent(f"{type(self.problem).__name__}: {self.problem}")
        self._requests.put(request)
        return self._answers.get()

    def receive(self) -> bytes:
        """Wait for the next message."""
        return self._requests.get()

    def send(self, body: bytes | Absent) -> None:
        """Answer it."""
        self._answers.put(body)
