"""NVIDIA FLARE as the runtime: its transport, TLS, authentication and provisioning carry the messages of a job.

The only file that knows it. A job becomes one of FLARE's: a controller on its server, an executor at each client. What
a site keeps, its samples and its state, lies in its own workspace, under `local/`, which a job cannot change.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.apis.executor import Executor
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import ReturnCode, Shareable
from nvflare.apis.signal import Signal
from nvflare.fuel.flare_api.flare_api import new_secure_session

from bench.errors import UserError
from bench.sites.export import LOADER, load_samples
from bench.sites.job import JOB, SiteJob
from bench.sites.rehearsal import folders
from bench.sites.server import SERVER, Absent, SitesServer
from bench.sites.site import SiteClient

TASK, BODY, FOLDER = "pfleague", "body", "pfleague"
"""Name of the one task; of a message in it; and of a participant's folder in its workspace's `local/`."""


def name_of(site: int) -> str:
    """FLARE's name of a site, as its provisioning in `poc` numbers them."""
    return f"site-{site + 1}"


class SiteExecutor(Executor):  # type: ignore[misc]
    """A site as a client of FLARE: one message in, one message out."""

    def __init__(self) -> None:
        super().__init__()
        self._site: SiteClient | None = None

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Answer a message; the first one loads the samples."""
        if self._site is None:
            config, local = _places(fl_ctx)
            job = SiteJob.load(config / JOB)
            number = [name_of(i) for i in job.sites].index(fl_ctx.get_identity_name())
            self._site = SiteClient(job, number, load_samples(local / LOADER, local / FOLDER, number), local / FOLDER)
        reply = Shareable()
        reply[BODY] = self._site.answer(shareable[BODY])
        return reply


class ServerController(Controller):  # type: ignore[misc]
    """The server of a job as a workflow of FLARE.

    Args:
        patience: seconds after which a site that has not answered is left out of a round.
        without, back: as `SitesServer` has them; an admin who needs them writes them into the submitted job.
    """

    def __init__(self, patience: int, without: Sequence[int] = (), back: bool = False) -> None:
        super().__init__()
        self.patience = patience
        self.without = without
        self.back = back

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Nothing to begin before the first message."""

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Nothing to end: all of it is on the disk."""

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Run the job from its first round, or its checkpoint, to its last."""
        config, local = _places(fl_ctx)
        try:
            job, hub = SiteJob.load(config / JOB), _Tasks(self, abort_signal, fl_ctx)
            SitesServer(job, hub, local / FOLDER, without=self.without, back=self.back).run()
        except UserError as error:
            self.system_panic(str(error), fl_ctx)


class _Tasks:
    """The hub of `ServerController`: each message is a task for one client."""

    def __init__(self, controller: ServerController, abort_signal: Signal, fl_ctx: FLContext) -> None:
        self._controller = controller
        self._abort = abort_signal
        self._fl_ctx = fl_ctx

    def ask(self, requests: Mapping[int, bytes]) -> dict[int, bytes | Absent]:
        """Give each client its task and wait for the results."""
        answers: dict[int, bytes | Absent] = {}
        ended = threading.Event()

        def take(client_task: ClientTask, fl_ctx: FLContext) -> None:
            number = client_task.task.props["site"]
            result = client_task.result
            body = result.get(BODY) if result.get_return_code() == ReturnCode.OK else None
            answers[number] = body if isinstance(body, bytes) else Absent(f"FLARE: {result.get_return_code()}")
            if len(answers) == len(requests):
                ended.set()

        tasks = []
        for i, request in requests.items():
            data = Shareable()
            data[BODY] = request
            task = Task(
                name=TASK, data=data, timeout=self._controller.patience, result_received_cb=take, props={"site": i}
            )
            tasks.append(task)
            self._controller.send(task, self._fl_ctx, targets=[name_of(i)])
        end = time.monotonic() + self._controller.patience
        while not ended.wait(0.1) and time.monotonic() < end:
            if self._abort.triggered:
                raise UserError("FLARE has aborted the job")
        for task in tasks:
            if not ended.is_set():
                self._controller.cancel_task(task)
        late = Absent(f"no answer in {self._controller.patience} seconds")
        return {i: answers.get(i, late) for i in requests}


def _places(fl_ctx: FLContext) -> tuple[Path, Path]:
    """The folder of the job's configuration, and the workspace's `local/`."""
    workspace = fl_ctx.get_engine().get_workspace()
    return Path(workspace.get_app_config_dir(fl_ctx.get_job_id())), Path(workspace.get_site_config_dir())


def write_job(job: Path, out: Path, patience: float) -> None:
    """Write FLARE's form of a job: folders and JSON that its admin submits.

    Args:
        job: folder of `bench sites export`.
        out: folder of the new job.
        patience: seconds after which a silent site is left out of a round.
    """
    sites = len(SiteJob.load(job / JOB).sites)
    config = out / "app" / "config"
    config.mkdir(parents=True)
    shutil.copy(job / JOB, config / JOB)
    none: dict[str, Any] = {"task_data_filters": [], "task_result_filters": [], "components": []}
    controller = {"id": "pfleague", "path": f"{__name__}.ServerController", "args": {"patience": int(patience)}}
    executor = {"tasks": [TASK], "executor": {"path": f"{__name__}.SiteExecutor", "args": {}}}
    meta = {"name": "pfleague", "resource_spec": {}, "min_clients": sites, "deploy_map": {"app": ["@ALL"]}}
    for path, content in (
        (out / "meta.json", meta),
        (config / "config_fed_server.json", {"format_version": 2, "workflows": [controller], **none}),
        (config / "config_fed_client.json", {"format_version": 2, "executors": [executor], **none}),
    ):
        path.write_text(json.dumps(content, indent=1), encoding="utf-8")


def allow(kit: Path, class_name: str) -> None:
    """Let a participant's workspace build a class of ours, which its list of allowed classes does not name."""
    local = kit / "local"
    resources = json.loads((local / "resources.json.default").read_text(encoding="utf-8"))
    resources["class_allow_list"].append(f"{__name__}.{class_name}")
    (local / "resources.json").write_text(json.dumps(resources, indent=1), encoding="utf-8")


def run_processes(jobs: Path, work: Path, patience: float) -> None:
    """Run a job on this machine: a provisioned server and clients as processes, with TLS, and one admin.

    Raises:
        UserError: FLARE could not be provisioned or started, or the job failed.
    """
    submit_once(provision(jobs, work, patience), work, patience)


def provision(jobs: Path, work: Path, patience: float) -> Path:
    """Provision FLARE for a job on this machine, and return the folder of all workspaces.

    Raises:
        UserError: FLARE could not be provisioned.
    """
    job = SiteJob.load(jobs / JOB)
    write_job(jobs, work / "flare", patience)
    kits = _provision(work, len(job.sites))
    for i, folder in zip(job.sites, folders(work, job), strict=True):
        shutil.copy(jobs / LOADER, kits / name_of(i) / "local" / LOADER)
        (kits / name_of(i) / "local" / FOLDER).symlink_to(folder)
        allow(kits / name_of(i), "SiteExecutor")
    (work / SERVER).mkdir()
    (kits / "server" / "local" / FOLDER).symlink_to(work / SERVER)
    allow(kits / "server", "ServerController")
    return kits


def submit_once(kits: Path, work: Path, patience: float) -> None:
    """Start the server and the clients, submit the job, wait for its end, and end them all.

    A job that failed goes on where it was when it is submitted again.

    Raises:
        UserError: the job failed.
    """
    job = SiteJob.load(work / "flare" / "app" / "config" / JOB)
    with contextlib.ExitStack() as processes:
        processes.enter_context(_process(kits / "server", "server.server_train", "fed_server.json", work))
        for i in job.sites:
            processes.enter_context(_process(kits / name_of(i), "client.client_train", "fed_client.json", work))
        _as_admin(kits / "admin@nvidia.com", work / "flare", len(job.sites), patience)


def _provision(work: Path, sites: int) -> Path:
    environment = {**os.environ, "HOME": str(work / "home"), "NVFLARE_POC_WORKSPACE": str(work / "poc")}
    (work / "home").mkdir()
    command = [sys.executable, "-m", "nvflare.cli", "poc", "prepare", "-n", str(sites)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    kits = work / "poc" / "example_project" / "prod_00"
    if not (kits / "server").is_dir():
        raise UserError(f"FLARE could not be provisioned: {(done.stderr or done.stdout).strip()[-300:]}")
    return kits


@contextlib.contextmanager
def _process(kit: Path, module: str, config: str, work: Path) -> Iterator[None]:
    """A server or client of FLARE, which is ended with all that it has started."""
    options = ["--set", "secure_train=true", f"uid={kit.name}", "org=nvidia", "config_folder=config"]
    command = [sys.executable, "-u", "-m", f"nvflare.private.fed.app.{module}", "-m", str(kit), "-s", config, *options]
    with (work / f"flare-{kit.name}.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=kit, stdout=log, stderr=log, start_new_session=True)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.wait()


def _as_admin(kit: Path, job: Path, sites: int, patience: float) -> None:
    """Submit a job in a process of its own: FLARE looks for its settings in all that is below the current folder."""
    program = f"from {__name__} import submit; import sys; submit(*sys.argv[1:])"
    command = [sys.executable, "-c", program, str(kit), str(job), str(sites), str(patience)]
    done = subprocess.run(command, cwd=kit, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"FLARE's job has failed: {(done.stderr or done.stdout).strip().rpartition(chr(10))[2]}")


def submit(kit: str, job: str, sites: str, patience: str) -> None:
    """Submit a job as an admin, once so many clients are there, and wait for its end.

    Raises:
        UserError: the clients are not there in time, or the job failed.
    """
    end = time.monotonic() + float(patience)
    session = None
    while session is None:
        try:
            session = new_secure_session(username=Path(kit).name, startup_kit_location=kit)
            present = len(session.get_system_info().client_info)
        except Exception as error:
            present, problem = 0, f"{type(error).__name__}: {error}"
        else:
            problem = f"{present} of {sites} clients are there"
        if present < int(sites):
            if session is not None:
                session.close()
            if time.monotonic() > end:
                raise UserError(f"FLARE: {problem}")
            session = None
            time.sleep(1)
    try:
        number = session.submit_job(job)
        session.monitor_job(number, timeout=0)
        status = session.get_job_meta(number)["status"]
        if "COMPLETED" not in status or "EXCEPTION" in status:
            raise UserError(f"FLARE's job has ended as {status}")
    finally:
        session.close()
