"""The rooms of the package and their floors."""

FLOORS = [
    "base", "samples", "config", "models", "metrics", "channel", "attacks", "engine", "federation", "store", "results",
    "runs", "conformance", "peer", "speed", "cluster", "sites",
    "api",
    "cli",
]  # fmt: skip
"""Rooms of `bench/` from the ground up; `base` is what lies in `bench/` itself. A room imports from lower ones only."""


PACKAGES = ["methods", "datasets", "reports", "sweeps"]


def room(module: str) -> str:
    """The room of a module, e.g. `engine`; a package beside `bench` is a room by itself."""
    first, *rest = module.split(".")
    if first != "bench":
        return first
    return rest[0] if rest and rest[0] in FLOORS else "base"
