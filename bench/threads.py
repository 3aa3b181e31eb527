"""Threads that work on clients side by side."""

import concurrent.futures
import functools
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

T = TypeVar("T")


def side_by_side(threads: int, jobs: Sequence[Callable[[], T]]) -> list[T]:
    """The results of jobs, done so many at a time; the calling thread is one of those who do them."""
    found: dict[int, T] = {}
    waiting = enumerate(jobs)

    def work() -> None:
        for i, job in waiting:
            found[i] = job()

    others = [_workers(threads - 1).submit(work) for _ in range(min(threads, len(jobs)) - 1)]
    try:
        work()
    finally:
        for _ in waiting:  # after an error nobody begins another job
            pass
        concurrent.futures.wait(others)
    for other in others:
        other.result()
    return [found[i] for i in range(len(jobs))]


@functools.cache
def _workers(threads: int) -> concurrent.futures.ThreadPoolExecutor:
    """Threads that stay, each with as many intra-op threads as the process has: a new one starts with torch's default,
    and the bytes depend on it."""
    return concurrent.futures.ThreadPoolExecutor(
        threads, initializer=torch.set_num_threads, initargs=(torch.get_num_threads(),)
    )
