"""Threads that work on several clients at the same time."""

import concurrent.futures
import contextlib
import functools
import queue
from collections.abc import Callable, Iterable
from typing import TypeVar

import torch

T = TypeVar("T")


def side_by_side(threads: int, jobs: Iterable[Callable[[], T]], count: int) -> list[T]:
    """Run `count` jobs, `threads` at a time, and return their results in order.

    The calling thread is one of the threads. A generator may make the jobs: the first jobs run while it makes others.
    """
    results: dict[int, T] = {}
    waiting: queue.SimpleQueue[tuple[int, Callable[[], T]] | None] = queue.SimpleQueue()
    others: list[concurrent.futures.Future[None]] = []

    def work() -> None:
        while numbered := waiting.get():
            i, job = numbered
            results[i] = job()

    try:
        for numbered in enumerate(jobs):
            waiting.put(numbered)
            if len(others) < min(threads, count) - 1:
                others.append(_workers(threads - 1).submit(work))
        for _ in range(1 + len(others)):
            waiting.put(None)
        work()
    finally:
        with contextlib.suppress(queue.Empty):  # after an error nobody begins another job
            while True:
                waiting.get_nowait()
        for _ in others:
            waiting.put(None)
        concurrent.futures.wait(others)
    for other in others:
        other.result()
    return [results[i] for i in range(count)]


@functools.cache
def _workers(threads: int) -> concurrent.futures.ThreadPoolExecutor:
    """Threads that stay, each with as many intra-op threads as the process has.

    A new thread starts with torch's default number of them, and the bytes depend on it.
    """
    return concurrent.futures.ThreadPoolExecutor(
        threads, initializer=torch.set_num_threads, initargs=(torch.get_num_threads(),)
    )
