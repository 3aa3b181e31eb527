"""Jobs beside their simulation: a rehearsal on noise, where sites must give the very bytes, or the cell is refused.

So nobody needs to know which method looks at what: one that needs more than a client's samples and its messages, such
as the server's state or the sizes of all where a client's model is made, has other bytes, or fails.
"""

import math
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from bench.data import Array, TokenShape, noise
from bench.errors import UserError
from bench.federation.federation import Federation
from bench.rng import generator
from bench.settings import Executor, Settings
from bench.sites.forms import Forms
from bench.sites.job import SiteJob, check_settings
from bench.sites.messages import read_file, same_bytes
from bench.sites.server import SERVER, Absent, SitesServer, Travelled
from bench.sites.site import MODEL, SiteClient
from bench.store import inside
from bench.store.documents import read_json

SIZES = (7, 4, 5)
"""Training samples of the rehearsal's sites: few and unequal."""


class LocalHub:
    """Sites of this process, which answer one after another."""

    def __init__(self, sites: Mapping[int, SiteClient]) -> None:
        self._sites = sites

    def ask(self, requests: Mapping[int, bytes]) -> dict[int, bytes | Absent]:
        """Ask one site after another; the error of a site that fails is raised here."""
        return {i: self._sites[i].answer(request) for i, request in requests.items()}


def rehearse(job: SiteJob) -> tuple[Forms, list[Travelled]]:
    """Run a job on noise, simulated and with sites.

    Returns:
        What the messages look like, and those of the last round; their tensors have the sizes of the job's.

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
        work = Path(folder)
        sites = {i: SiteClient(small, i, samples[i], at, "debug") for i, at in enumerate(folders(work, small))}
        try:
            server = SitesServer(small, LocalHub(sites), work / SERVER, forms)
            server.run()
        except Exception as error:
            cause = error.__cause__ or error
            text = f"without the samples of all it ends with {type(cause).__name__}: {cause}"
            raise UserError(f"{name}: {text}") from error
        if server.rounds.left_out:
            raise UserError(f"{name}: {server.rounds.left_out[0]}")
        for _ in range(small.settings.rounds):
            simulation.advance()
        different = differences(simulation, work)
        if not same_bytes(simulation.server.state, server.federation.server.state):
            different.append("the server's state")
        if different:
            raise UserError(f"{name}: it needs more than a site's samples and messages, as {different[0]} is another")
    changed = [(job.settings.epochs, small.settings.epochs), (job.settings.steps or 1, small.settings.steps or 1)]
    longer = math.prod(math.ceil(whole / part) for whole, part in changed if part)
    return forms.scaled(longer, math.ceil(len(job.sites) / len(small.sites))), server.rounds.messages


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
    x, y = (np.concatenate([s[part] for s in samples for part in (name, f"{name}_validation")]) for name in "xy")
    ends = np.cumsum([len(s[part]) for s in samples for part in ("x", "x_validation")])
    parts = np.split(np.arange(len(x)), ends[:-1])
    train, validation = (dict(enumerate(parts[first::2])) for first in (0, 1))
    return job.half(job.data.dataset(x, y), train, validation, "debug")


def folders(work: Path, job: SiteJob) -> list[Path]:
    """The folders of a job's sites on one machine."""
    return [work / f"site-{i}" for i in job.sites]


def simulate(settings: Settings, data_root: Path, executor: Executor = "auto") -> Federation:
    """The simulated cell after its last round."""
    federation = Federation.of(settings, data_root, executor=executor)
    for _ in range(settings.rounds):
        federation.advance()
    return federation


def differences(simulation: Federation, work: Path) -> list[str]:
    """Name the differences between a job's folders and its simulated cell; none if all bytes are the same."""
    texts, version, method = [], simulation.version, simulation.method
    if read_json(work / SERVER / "ledger.json")["ledger"] != simulation.ledger:
        texts.append("the ledger")
    models = {}
    generic = simulation.evaluator.generic(version, {}) if method.trains != "pm" else None
    if generic is not None:
        models[work / SERVER] = generic
    personal = simulation.evaluator.personal(version) if method.trains != "gm" else {}
    for i in simulation.clients.ids:
        if model := personal.get(i, generic):
            models[work / f"site-{i}"] = model
    for folder, model in models.items():
        saved, _ = read_file(inside.read_bytes(folder / MODEL))
        if not same_bytes(saved, model.tensors()):
            texts.append(f"the model of {folder.name}")
    return texts
