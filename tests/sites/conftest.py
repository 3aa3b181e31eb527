"""Small jobs whose sites are threads, or processes over mailboxes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.settings import Settings
from bench.sites.export import export
from bench.sites.job import JOB, SiteJob, SiteSamples, simulated
from bench.sites.rehearsal import LocalHub
from bench.sites.server import SitesServer
from bench.sites.site import SiteClient


def cell(method: str, **changes: Any) -> Settings:
    """A cell of three clients on digits."""
    common: dict[str, Any] = {
        "model": "mlp", "model_options": {"hidden": 8}, "alpha": 1.0, "clients": 3, "rounds": 3, "epochs": 1,
        "dataset_options": {}, "lr": 0.1, "seed": 1,
    }  # fmt: skip
    return Settings(method=method, **{**common, **changes})


_JOBS: dict[str, bytes] = {}
"""Jobs that were exported already, by their settings."""


class Small:
    """A job in a folder, with the samples of its sites.

    Attributes:
        settings: the cell.
        job: its job.
        work: folder with a folder for each participant.
        samples: of each site.
    """

    def __init__(self, settings: Settings, work: Path) -> None:
        known = settings.model_dump_json()
        if known not in _JOBS:
            export(settings, Path("data"), work / "job")
            _JOBS[known] = (work / "job" / JOB).read_bytes()
        (work / "job").mkdir(exist_ok=True)
        (work / "job" / JOB).write_bytes(_JOBS[known])
        self.settings = settings
        self.job = SiteJob.load(work / "job" / JOB)
        self.work = work
        self.samples: list[SiteSamples] = list(simulated(settings, Path("data"))[1])

    def site(self, i: int) -> SiteClient:
        """A site's process begins, or begins again."""
        return SiteClient(self.job, i, self.samples[i], self.work / f"site-{i}", "debug")

    def sites(self) -> dict[int, SiteClient]:
        """All sites."""
        return {i: self.site(i) for i in self.job.sites}

    def server(self, hub: Any, **options: Any) -> SitesServer:
        """The server's process begins, or begins again."""
        return SitesServer(self.job, hub, self.work / "server", **options)

    def run(self) -> SitesServer:
        """Run the whole job with sites in threads."""
        server = self.server(LocalHub(self.sites()))
        server.run()
        return server


@pytest.fixture
def small(tmp_path: Path) -> Callable[..., Small]:
    """Make a job of a method."""
    return lambda method, **changes: Small(cell(method, **changes), tmp_path)
