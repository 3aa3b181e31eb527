"""Seconds of a round by PFLlib's code and here, in turns, with the default arguments of each algorithm there.

    python -m tools.beside_speed CHECKOUT OUT.csv                # all algorithms; needs h5py, cvxpy and calmsize
    python -m tools.beside_speed CHECKOUT OUT.csv --only FedALA

MNIST on 20 clients of 295 training and 60 test images, PFLlib's CNN in float32, batches of 10, an epoch, all clients,
and an evaluation in each round. Both codes read the same folder, here by the grid that `bench from-pfllib` prints. The
first rounds are left out: they read data, and here steps are recorded. The machine should have nothing else to do.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import bench
from bench.cli.from_pfllib import ALGORITHMS, translate

CLIENTS, TRAIN, TEST = 20, 295, 60
THERE, HERE = 3, 7
"""Rounds that are run; of PFLlib's the last two are timed, of ours the last three."""


def write_folder(folder: Path, data_root: Path) -> None:
    """Write MNIST as PFLlib's generators do: equal numbers of images, drawn at random, for each client."""
    settings = bench.load_grid({"methods": ["fedavg"], "datasets": ["mnist"], "alphas": [0.1]}).cells[0]
    mnist = bench.load_dataset(settings, data_root)
    rows = np.random.default_rng(0).permutation(len(mnist.y))
    for client in range(CLIENTS):
        mine = rows[client * (TRAIN + TEST) : (client + 1) * (TRAIN + TEST)]
        for part, at in (("train", mine[:TRAIN]), ("test", mine[TRAIN:])):
            (folder / part).mkdir(parents=True, exist_ok=True)
            x = (np.asarray(mnist.x[at], np.float32).reshape(-1, 1, 28, 28) / 255 - 0.5) / 0.5
            pickled: Any = {"x": x, "y": np.asarray(mnist.y[at])}
            np.savez_compressed(folder / part / f"{client}.npz", data=pickled)


def there(checkout: Path, scratch: Path, words: list[str]) -> float:
    """Seconds of a round in PFLlib's `main.py`, which runs in a copy because it writes beside itself."""
    if not (scratch / "system").exists():
        shutil.copytree(checkout / "system", scratch / "system")
    command = [sys.executable, "main.py", "-dev", "cpu", *words, f"-gr={THERE - 1}"]
    done = subprocess.run(command, cwd=scratch / "system", capture_output=True, text=True, timeout=600)
    times = re.findall(r"(?m)^-{20,}.*?(\d+\.\d+)$", done.stdout)
    if done.returncode or len(times) < THERE:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr[-500:]}")
    return float(np.median([float(seconds) for seconds in times[1:]]))


class Clock(bench.Callback):
    """Writes the time of each round's end into a file, from the process that trains."""

    in_worker = True

    def __init__(self, file: Path) -> None:
        self.file = file

    def after_version(self, at: bench.Moment) -> None:
        """Note the time."""
        with self.file.open("a", encoding="utf-8") as lines:
            lines.write(f"{time.perf_counter()}\n")


def here(scratch: Path, words: list[str]) -> float:
    """Seconds of a round here."""
    grid, _ = translate([*words, f"-gr={HERE}"], scratch / "dataset")
    file = scratch / "ends"
    file.unlink(missing_ok=True)
    options: dict[str, Any] = {"quiet": True, "tracking": False, "fresh": True}
    bench.run(grid, scratch / grid["name"], callbacks=[Clock(file)], **options)
    return float(np.median(np.diff(np.loadtxt(file))[-3:]))


def main() -> None:
    """Time the algorithms that are not in the table yet, PFLlib's code first."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="*", choices=ALGORITHMS, default=list(ALGORITHMS), metavar="ALGORITHM")
    parser.add_argument("--data-root", type=Path, default=Path("data"), help="where MNIST is")
    options = parser.parse_args()
    rows: list[Any] = pd.read_csv(options.out).to_dict("records") if options.out.exists() else []
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        write_folder(scratch / "dataset" / "MNIST-295", options.data_root)
        for algorithm in options.only:
            if any(row["algorithm"] == algorithm for row in rows):
                continue
            words = [f"-algo={algorithm}", "-data=MNIST-295", "-m=CNN", f"-nc={CLIENTS}", "-lbs=10", "-lr=0.02"]
            seconds = {"PFLlib": there(options.checkout, scratch, words), "here": here(scratch, words)}
            ratio = round(seconds["PFLlib"] / seconds["here"], 1)
            rows.append({"algorithm": algorithm} | {k: round(v, 2) for k, v in seconds.items()} | {"ratio": ratio})
            print(rows[-1], flush=True)
            pd.DataFrame(rows).to_csv(options.out, index=False)


if __name__ == "__main__":
    main()
