"""Settings of every test run."""

import os


def pytest_configure() -> None:
    """One intra-op thread: the byte promise rests on it, and the test workers share few cores."""
    os.environ["OMP_NUM_THREADS"] = "1"  # read by torch when it is imported, here and in processes that tests start

    import torch

    torch.set_num_threads(1)
