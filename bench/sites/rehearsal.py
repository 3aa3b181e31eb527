"""A rehearsal of a job on noise: sites must give the very bytes of a simulation, or the cell is refused.

So nobody needs to know which method looks at what: one that needs more than a client's samples and its messages, such
as the server's state or the sizes of all where a client's model is made, has other bytes, or fails.
"""

import math
import queue
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bench.data import Array, TokenShape, noise
from bench.errors import UserError
from bench.federation.federation import Federation
from bench.rng import generator
from bench.sites.forms import Forms
from bench.sites.job import SiteJob, check_settings
from bench.sites.messages import read_file, same_bytes
from bench.sites.server import Absent, SitesServer, Travelled
from bench.sites.site import MODEL, SiteClient

SIZES = (7, 4, 5)
"""Training samples of the rehearsal's sites: few and unequal."""


class Threaded:
    """A site behind a function, in a thread of its own: its program may wait for a reply in the middle of a round."""

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


class Threads:
    """Sites in threads of this process, which answer one after another."""

    def __init__(self, sites: Mapping[int, SiteClient]) -> None:
        self._sites = {i: Threaded(site) for i, site in sites.items()}

    def ask(self, requests: Mapping[int, bytes]) -> dict[int, bytes | Absent]:
        """Ask one site after another; the error of a site that fails is raised here."""
        answers = {}
        for i, request in requests.items():
            answers[i] = self._sites[i].ask(request)
            if (problem := self._sites[i].problem) is not None:
                raise problem
        return answers


class Rehearsed(NamedTuple):
    """Findings of a rehearsal.

    Attributes:
        forms: what uploads look like.
        messages: what travelled in the last round; tensors have the sizes of the job's.
    """

    forms: Forms
    messages: list[Travelled]


def rehearse(job: SiteJob) -> Rehearsed:
    """Run a job on noise, simulated and with sites.

    Raises:
        UserError: the cell cannot run at sites; the message says what differs.
    """
    check_settings(job.settings)
    small = _small(job)
    samples = [_noise(small, i) for i in small.sites]
    simulation = _simulation(small, samples)
    forms = Forms()
    name = f"{job.settings.method} cannot run at sites"
    with tempfile.TemporaryDirectory() as folder:
        sites = {i: SiteClient(small, i, samples[i], Path(folder) / f"site-{i}", "debug") for i in small.sites}
        try:
            server = SitesServer(small, Threads(sites), Path(folder) / "server", forms)
            server.run()
        except Exception as error:
            cause = error.__cause__ or error
            text = f"without the samples of all it ends with {type(cause).__name__}: {cause}"
            raise UserError(f"{name}: {text}") from error
        if server.rounds.left_out:
            raise UserError(f"{name}: {server.rounds.left_out[0]}")
        for _ in range(small.settings.rounds):
            simulation.advance()
        if different := _difference(simulation, server.federation, Path(folder)):
            raise UserError(f"{name}: it needs more than a site's samples and messages, as {different} is another")
    changed = [(job.settings.epochs, small.settings.epochs), (job.settings.steps or 1, small.settings.steps or 1)]
    work = math.prod(math.ceil(whole / part) for whole, part in changed if part)
    return Rehearsed(forms.scaled(work, math.ceil(len(job.sites) / len(small.sites))), server.rounds.messages)


def _small(job: SiteJob) -> SiteJob:
    """The job with as few sites, and as little training, as tell whether it can run."""
    settings = job.settings.model_copy(
        update={
            "clients": min(len(job.sites), len(SIZES)),
            "epochs": min(job.settings.epochs, 2),
            "steps": None if job.settings.steps is None else min(job.settings.steps, 2),
        }
    )
    return job.model_copy(update={"settings": settings, "forms": None})


def _noise(job: SiteJob, site: int) -> dict[str, Array]:
    """Noise of the job's kind, with two validation samples."""
    facts = job.data
    shape = TokenShape(facts.shape[0], facts.vocabulary, facts.padding) if facts.vocabulary else facts.shape
    n = SIZES[site]
    drawn = noise(shape, job.data.num_classes, n + 2, generator("rehearsal", site))
    x = drawn.x if job.data.dtype != "uint8" else np.clip(127 + 40 * drawn.x, 0, 255)
    channels = list(job.data.indicators)
    x[:, channels] = np.greater(x[:, channels], 0)
    x, y = x.astype(job.data.dtype), (drawn.y + site) % job.data.num_classes
    return {"x": x[:n], "y": y[:n], "x_validation": x[n:], "y_validation": y[n:]}


def _simulation(job: SiteJob, samples: list[dict[str, Array]]) -> Federation:
    parts = [(s["x"], s["y"], s["x_validation"], s["y_validation"]) for s in samples]
    x = np.concatenate([array for x, _, held, _ in parts for array in (x, held)])
    y = np.concatenate([array for _, y, _, held in parts for array in (y, held)])
    train, validation, start = {}, {}, 0
    for i, (xs, _, held, _) in enumerate(parts):
        train[i] = np.arange(start, start + len(xs))
        validation[i] = np.arange(start + len(xs), start + len(xs) + len(held))
        start += len(xs) + len(held)
    return job.half(job.data.dataset(x, y), train, validation, "debug")


def _difference(simulation: Federation, server: Federation, folder: Path) -> str:
    """Name the first thing that is another with sites than in the simulation; empty if nothing is."""
    if simulation.ledger != server.ledger:
        return "the count of bytes and seconds"
    if not same_bytes(simulation.server.state, server.server.state):
        return "the server's state"
    if simulation.method.trains == "gm":
        return ""
    for i, model in simulation.evaluator.personal(simulation.version).items():
        saved, _ = read_file((folder / f"site-{i}" / MODEL).read_bytes())
        if not same_bytes(saved, model.tensors()):
            return "a site's model"
    return ""
