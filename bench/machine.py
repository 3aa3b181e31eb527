"""Where and with what a run was made: kept with it, never part of a cell's identity."""

import ctypes
import datetime
import importlib.metadata
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

_PACKAGES = ("torch", "torchvision", "numpy", "pandas", "scikit-learn")


def provenance() -> dict[str, Any]:
    """Time (UTC), commit, versions and machine."""
    return {
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "versions": _versions(),
        "machine": {
            "host": platform.node(),
            "system": platform.platform(),
            "cpu": _cpu(),
            "cores": cores(),
            "gpus": _gpus(),
        },
    }


def cores() -> int:
    """CPU cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def stolen_seconds(table: Path = Path("/proc/stat")) -> float:
    """Seconds of this process's cores that the host of a virtual machine gave to others so far; Linux, elsewhere 0."""
    if not table.exists():
        return 0.0
    own = {f"cpu{i}" for i in os.sched_getaffinity(0)}  # a container may list cores by other numbers
    rows = [line.split() for line in table.read_text(encoding="ascii").splitlines()]
    return sum(int(row[8]) for row in rows if row[0] in own) / os.sysconf("SC_CLK_TCK")  # columns of proc(5)


def keep_freed_memory(largest: int) -> None:
    """Have this process keep the memory that it frees from now on, where the C library is glibc.

    glibc gives large pieces back to the kernel, which hands them out again page by page and zeroed: every vector of a
    large model costs that at every step. Call it once the data is loaded: what is free by then goes back.

    Args:
        largest: bytes of the largest piece that comes and goes at every step. Still larger ones, which come and go
            once in a round, go back if they can be told apart: kept, they would leave holes that nothing fits in.
    """
    if sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "mallopt"):
        return
    ctypes.CDLL(None).malloc_trim(0)
    trim_threshold, mmap_threshold, mmap_max, arena_max = -1, -3, -4, -8  # names of mallopt(3)
    most = 32 * 2**20  # what mallopt takes for `mmap_threshold`
    # In an arena of its own, which is small, a thread would have to fetch large pieces from the kernel after all. All
    # are set every time (0 arenas: as many as glibc likes): the cell before in this process may have had another model.
    settings = (most, 2**16, 0) if largest < most else (most, 0, 1)
    parameters = zip((mmap_threshold, mmap_max, arena_max), settings, strict=True)
    for parameter, value in ((trim_threshold, 2**31 - 1), *parameters):
        ctypes.CDLL(None).mallopt(parameter, value)


def _commit() -> str | None:
    """The commit of pfl-bench's sources, `-dirty` after edits; None outside a git checkout of them."""
    here = Path(__file__).parent

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=here, capture_output=True, text=True, check=True).stdout.strip()

    try:
        git(
            "ls-files", "--error-unmatch", Path(__file__).name
        )  # an environment may lie inside somebody else's checkout
        return git("rev-parse", "HEAD") + ("-dirty" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _versions() -> dict[str, str]:
    from bench import __version__

    found = {"pfl-bench": __version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _gpus() -> list[str]:
    import torch

    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
