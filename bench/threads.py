"""Threads that work on clients side by side."""

import functools
from concurrent.futures import ThreadPoolExecutor

import torch


@functools.cache
def workers(threads: int) -> ThreadPoolExecutor:
    """Threads that stay, each with as many intra-op threads as the process has: a new one starts with torch's default,
    and the bytes depend on it."""
    return ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(torch.get_num_threads(),))
