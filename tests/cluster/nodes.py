"""A real Ray cluster of several nodes on this machine."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from tests.warm import PATIENCE

ARRIVE = 'hostname "$0" && mount --bind "$1" "$2" && shift 2 && exec "$@"'
"""What a node that is `apart` does first: it takes a host name and mounts one folder over another."""

QUICK = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 300, "health_check_failure_threshold": 3}


def can_be_apart() -> bool:
    """Whether the system allows a process to have its own mounts and host name."""
    probe = ["unshare", "--map-root-user", "--uts", "--pid", "--fork", "--mount-proc", "hostname", "probe"]
    return bool(shutil.which("unshare")) and not subprocess.run(probe, capture_output=True).returncode


class Nodes:
    """The head, and nodes that can be added and killed, with one core each. A node may be `apart`: it has its own
    host name and process ids, and where the others see the run folder it sees an empty or another folder."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        # With more log files open, Ray puts aside those of processes that have ended. The nodes share a folder of logs,
        # and a process of a node that is `apart` looks to the others as if it had ended.
        quiet = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
        self._environment = {**environment, **quiet, "RAY_LOG_MONITOR_MAX_OPEN_FILES": "1000000"}
        self._started: list[subprocess.Popen[bytes]] = []
        self._folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # a socket's path must be short
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        port = self.address.rpartition(":")[2]
        own = ["--head", "--port", port, "--include-dashboard", "false", "--system-config", json.dumps(QUICK)]
        self._start("first", [*own, "--temp-dir", str(self._folder)], [], {})

    def add(
        self, name: str, apart: tuple[Path, Path] | None = None, environment: Mapping[str, str] | None = None
    ) -> "subprocess.Popen[bytes]":
        """Start a node; `apart`: the folder that it sees, and the path at which it sees it."""
        prefix: list[str] = []
        if apart:
            alone = ["unshare", "--map-root-user", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
            prefix = [*alone, "sh", "-c", ARRIVE, name, *map(str, apart)]
        return self._start(name, ["--address", self.address], prefix, environment or {})

    def lives(self, node: "subprocess.Popen[bytes]") -> bool:
        """Whether a node was not killed."""
        return node in self._started and node.poll() is None

    def kill(self, node: "subprocess.Popen[bytes]") -> None:
        """End a node with all its processes, at once; it may have ended."""
        if node not in self._started:
            return
        for process in _session(node.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        node.wait()
        self._started.remove(node)

    def end(self) -> None:
        """End all of it."""
        for node in reversed(list(self._started)):
            self.kill(node)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _start(
        self, name: str, options: list[str], prefix: list[str], environment: Mapping[str, str]
    ) -> "subprocess.Popen[bytes]":
        ray = str(Path(sys.executable).with_name("ray"))
        common = ["--node-ip-address", "127.0.0.1", "--node-name", name, "--num-cpus", "1", "--num-gpus", "0"]
        command = [*prefix, ray, "start", "--block", *common, "--object-store-memory", str(100 * 2**20), *options]
        log = self._folder / f"{name}-{len(self._started)}.log"
        with open(log, "wb") as out:
            node = subprocess.Popen(
                command,
                env={**self._environment, **environment},
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        self._started.append(node)
        deadline = time.monotonic() + PATIENCE
        while b"Ray runtime started" not in log.read_bytes():
            if node.poll() is not None or time.monotonic() > deadline:
                printed = log.read_text()
                self.end()
                raise AssertionError(f"node {name!r} did not start within a minute: {printed}")
            time.sleep(0.1)
        return node


def _session(leader: int) -> list[int]:
    """The process ids of a session, the leader first. Processes in namespaces of their own end with the leader."""
    found = [leader]
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int(folder.joinpath("stat").read_text().rpartition(")")[2].split()[3]) == leader:
                found.append(int(folder.name))
    return found
