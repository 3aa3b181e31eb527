"""`bench track` and `bench ui`: copy a run to MLflow and show it there."""

import os
import shlex
import socket
import sys
from typing import Annotated

import typer

from bench.child_processes import safe_path
from bench.cli.commands import RunFolder
from bench.cli.results import end_if_damaged
from bench.errors import UserError
from bench.runs.options import TrackingUri


def track(run: RunFolder, tracking_uri: TrackingUri = None) -> None:
    """Add to MLflow what it lacks of a run. Nothing is recorded twice."""
    from bench.results.results import load_run
    from bench.runs import tracking

    load_run(run)  # raises if this is not a run; MLflow would create a folder and a store under any name
    uri = tracking.choose_store(run, tracking_uri)
    count = tracking.mirror_run(run, uri)
    print(f"{count} cells of {run} are in {tracking.shown(uri)}")
    end_if_damaged(run)


def ui(
    run: RunFolder,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port on this machine.")] = 5000,
) -> None:
    """Show a run in MLflow's own page. It is on this machine only, until Ctrl-C."""
    from bench.results.results import load_run
    from bench.runs import tracking
    from bench.store.inside import check_place

    load_run(run)  # raises if this is not a run, even if the folder has an MLflow store
    uri = tracking.embedded_uri(run)
    for name in ("mlflow.db", "mlartifacts"):
        check_place(run, run / name)
    if not (run / "mlflow.db").exists():
        again = shlex.join(["bench", "track", str(run), "--tracking-uri", uri])
        raise UserError(f"{run} has no mlflow.db. `{again}` makes it.")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise UserError(f"--port {port}: {error.strerror}. Choose another one.") from None
    print(f"http://127.0.0.1:{port} shows {run} in a moment; Ctrl-C ends it", flush=True)
    options = ["--backend-store-uri", uri, "--artifacts-destination", str(run.resolve() / "mlartifacts")]
    quiet = ["--workers", "1", "--uvicorn-opts", "--log-level warning"]
    command = [sys.executable, "-m", "mlflow", "server", *options, "--host", "127.0.0.1", "--port", str(port), *quiet]
    os.execve(sys.executable, command, {**tracking.ENVIRONMENT, **os.environ, **safe_path()})
