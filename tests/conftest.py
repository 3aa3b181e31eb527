"""Settings of every test run."""

import os


def pytest_configure() -> None:
    """One intra-op thread: the byte promise rests on it, and the test workers share few cores."""
    os.environ["OMP_NUM_THREADS"] = "1"  # read by torch when it is imported, here and in processes that tests start
    os.environ["BENCH_TRACKING"] = "0"  # the tests of the mirror ask for it; MLflow costs the others seconds each

    import torch

    torch.set_num_threads(1)

    import hypothesis

    # Time per example says nothing on a shared machine; the same examples in every run keep CI's verdict repeatable.
    hypothesis.settings.register_profile("bench", deadline=None, derandomize=True)
    hypothesis.settings.load_profile("bench")
