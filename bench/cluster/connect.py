"""From `--ray` to a cluster, and what its nodes have."""

import functools
import logging
import math
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bench.errors import UserError

OBJECT_STORE = 500 * 2**20
"""Bytes of memory for what a cluster of `--ray local` passes on; all of it lies on one machine."""

_PATIENCE = 5.0
_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",  # nothing is sent anywhere
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1",  # a worker without a share of a GPU sees none
}


@dataclass(frozen=True)
class Node:
    """A living node: its id in Ray, a name for people, and its resources by Ray's names."""

    id: str
    name: str
    resources: Mapping[str, float]

    def room(self, wanted: Mapping[str, float]) -> int:
        """How many workers with these resources it holds."""
        return min(math.floor(self.resources.get(key, 0) / value + 1e-9) for key, value in wanted.items() if value)


def connect(address: str) -> None:
    """Join a cluster: `local` (this machine alone), `auto` (the one that this machine is a node of), or HOST:PORT.

    Raises:
        UserError: Ray is not installed, or there is no such cluster.
    """
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError as error:
        raise UserError(
            f"--ray: Ray is not installed here ({error}). Install it on all nodes: pip install 'pfleague[cluster]'"
        ) from None
    if ray.is_initialized():
        return
    if address not in ("auto", "local"):
        _knock(address)
    own: dict[str, Any] = {}
    if address == "local":
        own = {"include_dashboard": False, "object_store_memory": OBJECT_STORE}
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **own)
    except (Exception, SystemExit) as error:  # Ray raises whatever its parts do
        text = " ".join(str(error).split())
        raise UserError(f"--ray {address}: {_remedy(text)}") from None


def _knock(address: str) -> None:
    """Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "/" in host:
        raise UserError(f"--ray {address}: give HOST:PORT of the cluster's head (as `ray start` says), auto or local")
    try:
        socket.create_connection((host, int(port)), _PATIENCE).close()
    except (OSError, OverflowError) as error:
        raise UserError(f"--ray {address}: nothing answers there ({error}). Is the head of the cluster up?") from None


def _remedy(text: str) -> str:
    if "Could not find any running Ray" in text:
        return "this machine is no node of a cluster: `ray start` makes it one, and --ray local needs none"
    if "Version mismatch" in text or "version" in text.lower():
        return f"the cluster runs another Ray or Python: {text[:300]}"
    return f"Ray says: {text[:300] or 'nothing'}"


def nodes() -> list[Node]:
    """The living nodes of the cluster."""
    import ray

    ask: Any = ray.nodes  # Ray gives it no types
    found = [node for node in ask() if node["Alive"]]
    return [Node(node["NodeID"], _name(node), node["Resources"]) for node in found]


def _name(node: Mapping[str, Any]) -> str:
    """The name given at `ray start --node-name`, else the host's; two nodes may be on one host."""
    named = node["NodeName"] != node["NodeManagerAddress"]
    return f"{node['NodeName'] if named else node['NodeManagerHostname']} ({node['NodeID'][:6]})"


def has_gpus() -> bool:
    """Whether some node has a GPU."""
    return any(node.resources.get("GPU", 0) for node in nodes())


def require(wanted: Mapping[str, float], devices: int) -> None:
    """Refuse resources that no node has, and more devices than all nodes have.

    Raises:
        UserError: as said.
    """
    found = nodes()
    room = sum(node.room(wanted) for node in found)
    if room >= devices:
        return
    if room:
        raise UserError(f"--devices-per-cell {devices}: the cluster has room for {room} of them, whatever else it does")
    asked = " and ".join(f"{value:g} {key}" for key, value in wanted.items() if value)
    there = "; ".join(
        f"{node.name}: " + ", ".join(f"{node.resources.get(key, 0):g} {key}" for key in ("CPU", "GPU"))
        for node in found
    )
    raise UserError(f"no node of the cluster has {asked} for a cell. There are {there}")


@functools.cache
def actor_options() -> dict[str, Any]:
    """Of every worker: one intra-op thread, and methods that are called while one waits."""
    from bench.runs.crew import ONE_THREAD

    return {"max_concurrency": 4, "runtime_env": {"env_vars": dict(ONE_THREAD)}}


def last_line(error: BaseException) -> str:
    """Of what an error of Ray says, which is long; its kind if it says nothing."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines or [type(error).__name__])[-1][:300]
