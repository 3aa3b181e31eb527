"""How fast is a commit beside another one, where `bench speed` of each scatters more than they differ?

    python docs/examples/speed_pairs.py OLD NEW digits mnist_mlp     # two checkouts, each with its `.venv`

Processes of both are alive at the same time and take turns in random order. Prints, for contestants of `bench speed`,
milliseconds of training per client step (medians over the turns) and the median ratio, new to old, within a turn.
"""

import random
import statistics
import subprocess
import sys
from pathlib import Path

CONTESTANTS = ("plain", "sequential", "cohort", "cell")
TURNS = 31


def take_turns(workload: str, name: str) -> None:
    """What the process of a checkout does: a turn for each line that it reads."""
    from bench.speed.contestants import Process, contestants

    chosen = next(one for one in contestants("cpu") if one.name == name)
    process = Process(chosen, workload, "cpu")
    for _ in sys.stdin:
        process.start()
        turn = process.result()
        print(1e3 * turn.training / turn.steps, flush=True)
    process.end()


def compare(checkouts: list[Path], workload: str, name: str) -> str:
    """A row of the table."""
    pipe, milliseconds = subprocess.PIPE, []
    running = [
        subprocess.Popen(
            [checkout / ".venv/bin/python", Path(__file__).resolve(), "--turns", workload, name],
            cwd=checkout, stdin=pipe, stdout=pipe, text=True,
        )
        for checkout in checkouts
    ]  # fmt: skip
    for _ in range(1 + TURNS):
        order, found = random.sample(running, len(running)), {}
        for process in order:
            assert process.stdin
            assert process.stdout
            process.stdin.write("\n")
            process.stdin.flush()
            found[process] = float(process.stdout.readline())
        milliseconds.append([found[process] for process in running])
    for process in running:
        process.communicate()
    counted = milliseconds[1:]  # in its first turn a contestant warms up
    old, new = (statistics.median(column) for column in zip(*counted, strict=True))
    ratio = statistics.median(after / before for before, after in counted)
    return f"| {workload} | {name} | {old:.3f} | {new:.3f} | {ratio:.2f} |"


def main() -> None:
    """Print the table."""
    old, new, *workloads = sys.argv[1:]
    print("| workload | | old | new | ratio |\n|---|---|---:|---:|---:|")
    for workload in workloads:
        for name in CONTESTANTS:
            print(compare([Path(old).resolve(), Path(new).resolve()], workload, name), flush=True)


if __name__ == "__main__":
    take_turns(*sys.argv[2:]) if sys.argv[1] == "--turns" else main()
