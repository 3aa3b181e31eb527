"""How many processes of tests `-n auto` is: bounded by cores and by memory."""

from pathlib import Path

import pytest

from tests.processes import MEMORY, free_memory, processes

GB = 2**30


@pytest.mark.parametrize(
    ("cores", "memory", "quick", "all_of_ci"),
    [
        (2, 100 * GB, 2, 4),
        (4, 2 * MEMORY, 2, 2),
        (2, MEMORY - 1, 1, 1),
        (1, 100 * GB, 1, 3),
        (64, 10 * MEMORY, 10, 10),
        (64, 0, 1, 1),
    ],
)
def test_as_many_as_cores_where_there_is_memory(cores: int, memory: int, quick: int, all_of_ci: int) -> None:
    assert processes(cores, memory, "not slow and not long") == quick
    assert processes(cores, memory, "not slow") == all_of_ci


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"proc/meminfo": "MemTotal: 9000 kB\nMemAvailable:    4000 kB\nHugePages_Total: 0\n"}, 4000 * 1024),
        ({}, 2**60),
        ({"sys/fs/cgroup/memory.max": "5000\n", "sys/fs/cgroup/memory.current": "2000\n"}, 3000),
        ({"sys/fs/cgroup/memory.max": "max\n", "sys/fs/cgroup/memory.current": "2000\n"}, 2**60),
        ({"sys/fs/cgroup/memory/memory.limit_in_bytes": "700\n"}, 700),
    ],
)
def test_free_memory_is_the_machine_s_or_its_group_s(files: dict[str, str], expected: int, tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="ascii")
    assert free_memory(tmp_path) == expected


def test_xdist_asks_for_it(pytestconfig: pytest.Config) -> None:
    """By a hook of `tests/conftest.py`; the answer of this machine is a number of processes."""
    pytest.importorskip("xdist")
    assert pytestconfig.hook.pytest_xdist_auto_num_workers(config=pytestconfig) >= 1
