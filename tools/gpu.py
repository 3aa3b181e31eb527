"""`make gpu`: the tests on a GPU, and two small grids on the processor and on the GPU, with a table of differences.

It takes up to four minutes. `DEVICE=cpu` rehearses it where there is no GPU: the tests are skipped, and both runs of a
grid are on the processor.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import torch

from bench.results.results import load_run
from bench.store.provenance import cores

GRIDS = {
    "mlp": ["methods=[fedavg, ditto, scd, fedproto, pfedme]", "rounds=10"],
    "resnet18": [
        "methods=[fedavg, ditto, scd, fedproto]",
        "rounds=3",
        "steps=4",
        "model=resnet18",
        "model_options={}",
        "clients=3",
    ],
}
"""What is changed in the grid `quickstart`, by its model."""
COMMON = ["seeds=[0]", "alphas=[1]", "eval_every=1"]
TESTS, RUNS = 110, 120
"""Seconds that the tests and the runs may take."""


def tests() -> int:
    """Run the tests on a GPU in many processes, without the plug-ins of pytest that happen to be installed."""
    processes = str(max(1, min(8, cores() - 2)))  # each opens the device
    words = ["-p", "xdist.plugin", "-n", processes, "--dist", "worksteal", "-q", "-m", "not slow"]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", *words, "tests/engine/test_gpu.py"]
    try:
        return subprocess.run(command, env=environment, timeout=TESTS, check=False).returncode
    except subprocess.TimeoutExpired:
        print(f"The tests took more than {TESTS} seconds and were ended.")
        return 1


def runs(out: Path, device: str) -> list[str]:
    """Run the grids on both devices, all at once, and return the names of those that did not end well."""
    left, end = {}, time.monotonic() + RUNS
    for model, changes in GRIDS.items():
        for place, kind in (("processor", "cpu"), ("gpu", device)):
            words = ["run", "--grid", "quickstart", "--fresh", "--out", str(out / model / place), "--device", kind]
            words += [word for change in COMMON + changes for word in ("--set", change)]
            command = [str(Path(sys.executable).with_name("bench")), *words, "--no-tracking", "--quiet"]
            left[f"{model} on the {place}"] = subprocess.Popen(command)
    failed = []
    for name, process in left.items():
        try:
            status = process.wait(max(1.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.terminate()
            status = process.wait()
        failed += [name] if status else []
    return failed


def differences(out: Path, model: str) -> pd.DataFrame:
    """Of the accuracies after each round, by method: how many, how far apart, and the means of the last ones."""
    here, there = (load_run(out / model / place).metrics for place in ("processor", "gpu"))
    both = here.merge(
        there, on=[name for name in here.columns if name not in ("value", "cell")], suffixes=("", " there")
    )
    accuracies = both[both["quantity"] == "accuracy"]
    away = (accuracies["value"] - accuracies["value there"]).abs()
    table = accuracies.assign(away=away).groupby("label")["away"].agg(["size", "max", "mean"])
    table.columns = ["accuracies", "largest difference", "mean difference"]
    ends = accuracies[accuracies["round"] == accuracies["round"].max()]
    means = ends.rename(columns={"value": "last, processor", "value there": "last, GPU"}).groupby("label")
    last = means[["last, processor", "last, GPU"]].mean()
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
    failed = [] if tests() in (0, 5) else ["the tests"]  # 5: all were skipped
    failed += runs(given.out, given.device)
    done = [model for model in GRIDS if not any(name.startswith(model) for name in failed)]
    if done:
        table = pd.concat([differences(given.out, model) for model in done])
        print(table.to_string(index=False, float_format="{:.4f}".format))
    for name in failed:
        print(f"failed: {name}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
