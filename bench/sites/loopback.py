"""A job on one machine: a server and its sites as processes, and the comparison with the simulated cell."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.child_processes import safe_path
from bench.errors import UserError
from bench.federation.federation import Federation
from bench.settings import Executor, Settings
from bench.sites.export import JOB
from bench.sites.job import SiteJob
from bench.sites.messages import read_file, same_bytes
from bench.sites.server import SERVER
from bench.sites.site import MODEL
from bench.store import inside
from bench.store.documents import read_json


def folders(work: Path, job: SiteJob) -> list[Path]:
    """The sites' folders of a loopback."""
    return [work / f"site-{i}" for i in job.sites]


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
