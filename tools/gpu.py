"""`make gpu`: the tests on a GPU, and two small grids on the processor and on the GPU, with a table of differences.

It takes up to four minutes. What is not done by then is ended: the tests say what had passed and failed, and the table
compares the rounds that both runs of a grid have. `DEVICE=cpu` rehearses it where there is no GPU: the tests are
skipped, and both runs of a grid are on the processor.
"""

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import torch

from bench.errors import UserError
from bench.results.results import load_run
from bench.store.provenance import cores

GRIDS = {
    "mlp": ["methods=[fedavg, ditto, fedproto, pfedme, scd]", "rounds=5"],
    "resnet18": [
        "methods=[fedavg, scd]",
        "rounds=2",
        "steps=2",  # one of SCD takes seconds on a processor
        "model=resnet18",
        "model_options={}",
        "clients=2",
    ],
}
"""What is changed in the grid `quickstart`, by its model."""
COMMON = ["seeds=[0]", "alphas=[1]", "eval_every=1"]
TESTS, RUNS = 140, 80
"""Seconds that the tests and the runs may take; the runs also get what the tests have left of theirs."""
GRACE = 8
"""Seconds in which a process that is told to end writes what it has; then it is killed."""
FILE = "tests/engine/test_gpu.py"


def tests() -> int:
    """Run the tests on a GPU in many processes, without the plug-ins of pytest that happen to be installed."""
    processes = str(max(1, min(14, cores() - 2)))  # each opens the device
    words = ["-p", "xdist.plugin", "-n", processes, "--dist", "worksteal", "-q", "-rfE", "-m", "not slow"]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    process = subprocess.Popen([sys.executable, "-m", "pytest", *words, FILE], env=environment)
    try:
        return process.wait(TESTS)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)  # pytest then counts what passed, and names what failed
        wait_or_kill(process, time.monotonic() + GRACE)
        print(f"The tests took more than {TESTS} seconds and were ended.")
        return 1


def wait_or_kill(process: subprocess.Popen[bytes], end: float) -> int:
    """Wait for a process that was told to end, kill it if it has not done so, and return its status."""
    try:
        return process.wait(max(0.0, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def runs(out: Path, device: str, end: float) -> list[str]:
    """Run the grids on both devices, all at once, and return the names of those that did not end well by then."""
    left = {}
    for model, changes in GRIDS.items():
        for place, kind in (("processor", "cpu"), ("gpu", device)):
            shutil.rmtree(out / model / place, ignore_errors=True)  # the table may not be of an earlier run
            words = ["run", "--grid", "quickstart", "--out", str(out / model / place), "--device", kind]
            words += [word for change in COMMON + changes for word in ("--set", change)]
            words += ["--jobs", str(max(1, cores() // 4))]  # four commands at a time
            command = [str(Path(sys.executable).with_name("bench")), *words, "--no-tracking", "--quiet"]
            left[f"{model} on the {place}"] = subprocess.Popen(command)
    for process in left.values():
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, end - time.monotonic()))
    for process in left.values():
        process.terminate()  # does nothing to those that have ended
    return [name for name, process in left.items() if wait_or_kill(process, end + GRACE)]


def differences(out: Path, model: str) -> pd.DataFrame:
    """Of the accuracies after each round that both runs have, by method: how many, how far apart, and the means of the
    last ones. Empty where they have none in common."""
    try:
        here, there = (load_run(out / model / place).metrics for place in ("processor", "gpu"))
    except UserError:  # one was ended before it had begun
        return pd.DataFrame()
    if here.empty or there.empty:
        return pd.DataFrame()
    both = here.merge(
        there, on=[name for name in here.columns if name not in ("value", "cell")], suffixes=("", " there")
    )
    accuracies = both[both["quantity"] == "accuracy"]
    away = (accuracies["value"] - accuracies["value there"]).abs()
    table = accuracies.assign(away=away).groupby("label")["away"].agg(["size", "max", "mean"])
    table.columns = ["accuracies", "largest difference", "mean difference"]
    ends = accuracies[accuracies["round"] == accuracies.groupby("label")["round"].transform("max")]
    means = ends.rename(columns={"value": "last, processor", "value there": "last, GPU"}).groupby("label")
    last = means[["round", "last, processor", "last, GPU"]].agg("mean").astype({"round": int})
    return table.join(last).reset_index().assign(model=model)


def main() -> int:
    """Run all of it; the exit status is 1 where something failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, default=Path("build/gpu"))
    given = parser.parse_args()
    if given.device == "cuda" and not torch.cuda.is_available():
        print("There is no GPU here that PyTorch can use. `make gpu DEVICE=cpu` rehearses without one.")
        return 1
    end = time.monotonic() + TESTS + RUNS
    failed = [] if tests() in (0, 5) else ["the tests"]  # 5: all were skipped
    failed += runs(given.out, given.device, end)
    table = pd.concat([differences(given.out, model) for model in GRIDS])
    print(
        "No two runs had a round in common."
        if table.empty
        else table.to_string(index=False, float_format="{:.4f}".format)
    )
    for name in failed:
        print(f"failed: {name}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
