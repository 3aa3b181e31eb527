"""How many processes of tests run side by side, if nobody says it (`-n auto`)."""

from pathlib import Path

MEMORY = 4 * 2**30
"""Bytes for each: 1.6 GB were measured for itself, 0.9 for what its commands are forked from, the rest is for these."""


def processes(cores: int, memory: int, marks: str) -> int:
    """As many as there are cores, if the memory allows it.

    With the long tests it is two more, as many of these wait for nodes, servers and commands: three processes left a
    third of two cores idle.

    Args:
        cores: that may be used.
        memory: bytes that are free.
        marks: the expression of marks (`-m`) that chooses the tests.
    """
    return max(1, min(cores + 2 * ("not long" not in marks), memory // MEMORY))


def free_memory(root: Path = Path("/")) -> int:
    """Bytes that are free on this machine and in its control group; outside Linux too many to be a limit."""
    free = 2**60
    if (table := root / "proc/meminfo").is_file():
        rows = dict(line.split(":") for line in table.read_text(encoding="ascii").splitlines())
        free = 1024 * int(rows["MemAvailable"].split()[0])
    for folder, names in (("sys/fs/cgroup", ("memory.max", "memory.current")),
                          ("sys/fs/cgroup/memory", ("memory.limit_in_bytes", "memory.usage_in_bytes"))):  # fmt: skip
        limit, used = (_number(root / folder / name) for name in names)
        if limit is not None:
            free = min(free, limit - (used or 0))
    return free


def _number(file: Path) -> int | None:
    text = file.read_text(encoding="ascii").strip() if file.is_file() else ""
    return int(text) if text.isdigit() else None
