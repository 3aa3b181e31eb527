"""NVIDIA FLARE carries a job: a provisioned server and three clients as processes, with TLS."""

import os
import signal
import threading
from pathlib import Path

import pytest

from bench.errors import UserError
from bench.sites.export import export, write_samples
from bench.sites.job import SiteJob
from bench.sites.rehearsal import differences, folders, simulate
from tests.runs.helpers import until
from tests.sites.conftest import cell
from tests.warm import PATIENCE, Start

pytest.importorskip("nvflare")


@pytest.mark.long
def test_a_cell_over_flare_has_the_bytes_of_its_simulation(tmp_path: Path, fresh: Start) -> None:
    grid = "methods: [scd]\ndatasets: [digits]\nalphas: [1.0]\nclients: 3\nrounds: 3\nmodel_options: {hidden: 8}\n"
    (tmp_path / "grid.yaml").write_text(grid, encoding="utf-8")
    command = ["sites", "check", "grid.yaml", "--runtime", "flare", "--out", "work", "--patience", str(PATIENCE)]
    process = fresh(command, tmp_path)
    out, err = process.communicate(timeout=2 * PATIENCE)
    assert process.returncode == 0, out + err
    assert "models and ledger of 3 sites are the simulated cell's, byte by byte" in out
    assert (tmp_path / "work" / "poc").is_dir()


@pytest.mark.slow
def test_a_job_whose_site_was_killed_goes_on_when_it_is_submitted_again(tmp_path: Path) -> None:
    """FLARE fails the whole job with the process of one client; all processes end, and nothing is lost."""
    from bench.sites import flare

    settings = cell("ditto", rounds=6)
    export(settings, Path("data"), tmp_path / "job")
    write_samples(settings, Path("data"), folders(tmp_path, SiteJob.load(tmp_path / "job" / "job.json")))
    kits = flare.provision(tmp_path / "job", tmp_path, PATIENCE)
    ended = threading.Event()

    def kill() -> None:
        until(lambda: ended.is_set() or (tmp_path / "site-1" / "state-000002").exists())
        for process in Path("/proc").glob("[0-9]*"):
            words = _words(process)
            if str(kits / "site-2") in words and any("worker_process" in word for word in words):
                os.kill(int(process.name), signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        with pytest.raises(UserError, match="FLARE's job has failed"):
            flare.submit_once(kits, tmp_path, PATIENCE)
    finally:
        ended.set()
        killer.join()
    assert not (tmp_path / "server" / "model.safetensors").exists()
    flare.submit_once(kits, tmp_path, PATIENCE)
    assert differences(simulate(settings, Path("data")), tmp_path) == []


def _words(process: Path) -> list[str]:
    try:
        return (process / "cmdline").read_text(encoding="utf-8").split("\0")
    except (OSError, UnicodeDecodeError):
        return []
