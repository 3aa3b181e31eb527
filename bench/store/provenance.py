"""Provenance of a run: the place, time, machine and versions that it was made with; never part of a cell's identity."""

import datetime
import hashlib
import importlib
import importlib.metadata
import os
import platform
import re
import subprocess
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


def harness_code() -> str:
    """Digest of the source files that a cell runs through; where it differs, results may differ."""
    digest = hashlib.blake2b(digest_size=8)
    for package in ("bench", "methods", "datasets"):
        folder = Path(importlib.import_module(package).__path__[0])
        for file in sorted(folder.rglob("*.py")):
            digest.update(f"{package}/{file.relative_to(folder).as_posix()} {file.stat().st_size} ".encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()


def cores() -> int:
    """CPU cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def stolen_seconds(table: Path = Path("/proc/stat")) -> float:
    """Seconds of this process's cores that the host of a virtual machine gave to others so far; Linux, elsewhere 0."""
    if not table.exists():
        return 0.0
    names = {f"cpu{i}" for i in os.sched_getaffinity(0)}  # a container may list cores by other numbers
    rows = [line.split() for line in table.read_text(encoding="ascii").splitlines()]
    return sum(int(row[8]) for row in rows if row[0] in names) / os.sysconf("SC_CLK_TCK")  # columns of proc(5)


def _commit() -> str | None:
    """The commit of pFLeague's sources, `-dirty` after edits; None outside a git checkout of them."""
    folder = Path(__file__).parent

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", Path(__file__).name)  # an environment may lie in somebody else's checkout
        return git("rev-parse", "HEAD") + ("-dirty" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _versions() -> dict[str, str]:
    from bench import __version__

    numbers = {package: importlib.metadata.version(package) for package in _PACKAGES}
    return {"pFLeague": __version__, "python": platform.python_version(), **numbers}


def _cpu() -> str:
    table = Path("/proc/cpuinfo")
    text = table.read_text(encoding="utf-8") if table.exists() else ""
    name = re.search(r"^model name\s*: (.*)$", text, re.MULTILINE)
    return name[1] if name else platform.processor()


def _gpus() -> list[str]:
    import torch

    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
