"""Connect to the cluster that `--ray` names, and list the resources of its nodes."""

import functools
import logging
import math
import os
import socket
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.errors import UserError, optional

OBJECT_STORE = 500 * 2**20
"""Bytes of Ray's object store with `--ray local`. Little is enough, since everything stays on one machine."""

_PATIENCE = 5.0
_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",  # Ray must not send usage statistics
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1",  # a worker that was given no GPU must see none
}


@dataclass(frozen=True)
class Node:
    """A node that is alive: its id in Ray, a readable name, and its resources by Ray's names."""

    id: str
    name: str
    resources: Mapping[str, float]

    def room(self, resources: Mapping[str, float]) -> int:
        """Return how many workers with these resources the node has room for."""
        return min(math.floor(self.resources.get(key, 0) / value + 1e-9) for key, value in resources.items() if value)


def connect(address: str) -> None:
    """Join a cluster: `local` (this machine alone), `auto` (the one that this machine is a node of), or HOST:PORT.

    Raises:
        UserError: Ray is not installed, or the cluster does not exist.
    """
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    ray = optional("ray", f"--ray {address}")
    if ray.is_initialized():
        return
    if address not in ("auto", "local"):
        _check_reachable(address)
    options: dict[str, Any] = {}
    if address == "local":
        options = {"include_dashboard": False, "object_store_memory": OBJECT_STORE}
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **options)
    except (Exception, SystemExit) as error:  # Ray passes on errors of any type from its own parts
        text = " ".join(str(error).split())
        raise UserError(f"--ray {address}: {remedy(text)}") from None


def _check_reachable(address: str) -> None:
    """Refuse an address where nothing answers. Ray itself would keep trying for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "/" in host:
        raise UserError(f"--ray {address}: give HOST:PORT of the cluster's head (as `ray start` says), auto or local")
    try:
        socket.create_connection((host, int(port)), _PATIENCE).close()
    except (OSError, OverflowError) as error:
        raise UserError(f"--ray {address}: nothing answers there ({error}). Is the head of the cluster up?") from None


def remedy(text: str) -> str:
    """Say what to do about an error in Ray's words."""
    if "Could not find any running Ray" in text:
        return "this machine is no node of a cluster: `ray start` makes it one, and --ray local needs none"
    place = Path(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()) / "ray" / "session_latest" / "logs"
    return (
        f"Ray says: {text[:300] or 'nothing'}. Its logs are in {place}; if this machine is busy, the same command "
        "tries again"
    )


def nodes() -> list[Node]:
    """Return the nodes of the cluster that are alive."""
    import ray

    ask: Any = ray.nodes  # Ray declares no types for it
    alive = [node for node in ask() if node["Alive"]]
    return [Node(node["NodeID"], _name(node), node["Resources"]) for node in alive]


def _name(node: Mapping[str, Any]) -> str:
    """Return the name given to `ray start --node-name`, else the host's. Part of the id tells nodes of a host apart."""
    named = node["NodeName"] != node["NodeManagerAddress"]
    return f"{node['NodeName'] if named else node['NodeManagerHostname']} ({node['NodeID'][:6]})"


def require(resources: Mapping[str, float], devices: int) -> None:
    """Check that the cluster can provide the resources of a cell.

    Raises:
        UserError: no node has these resources, or all nodes together have room for fewer devices.
    """
    members = nodes()
    room = sum(node.room(resources) for node in members)
    if room >= devices:
        return
    if room:
        raise UserError(f"--devices-per-cell {devices}: the cluster has room for {room} of them, whatever else it does")
    demand = " and ".join(f"{value:g} {key}" for key, value in resources.items() if value)
    offers = "; ".join(
        f"{node.name}: " + ", ".join(f"{node.resources.get(key, 0):g} {key}" for key in ("CPU", "GPU"))
        for node in members
    )
    raise UserError(f"no node of the cluster has {demand} for a cell. There are {offers}")


@functools.cache
def actor_options() -> dict[str, Any]:
    """Return Ray's options for every worker: one intra-op thread, and methods that run while another one waits."""
    from bench.runs.cell_runner import ONE_THREAD

    return {"max_concurrency": 4, "runtime_env": {"env_vars": dict(ONE_THREAD)}}


def last_line(error: BaseException) -> str:
    """Return the last line of an error of Ray, whose messages are long, or its type if it has no message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines or [type(error).__name__])[-1][:300]
