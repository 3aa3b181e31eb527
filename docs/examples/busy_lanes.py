"""How many of a GPU's lanes are busy while clients of unequal size train?

    python docs/examples/busy_lanes.py
    python docs/examples/busy_lanes.py --alphas 0.1 --epochs 1 --seed 3

Prints, for a data set of CIFAR-10's size over Dirichlet clients, what share of all lane-steps trains a client, how
often the step is called and how many packings there are: with one number of lanes from beginning to end and runs that
go on over the ends of epochs; with runs that end there; with fewer lanes where those hold all that still train; and
with short batches beside the full ones, as networks without BatchNorm have them. It needs no pictures, only sizes.
"""

import argparse

import numpy as np

from bench.data import Dataset
from bench.engine.batches import DrawAddress, draw_batches, steps_per_epoch
from bench.engine.packing import IDLE, Packing, Phase, narrowed, pack, phases_of, runs_of
from bench.requests import Feed
from datasets.partitions import make_partition

CLASSES = 10


def client_sizes(alpha: float, clients: int, seed: int) -> list[int]:
    """Training samples of each client: 50,000 of ten balanced classes."""
    labels = np.concatenate([np.repeat(np.arange(CLASSES), 5000), np.repeat(np.arange(CLASSES), 1000)])
    data = Dataset("sizes", np.zeros((60_000, 1), np.float32), labels, 50_000, CLASSES, (0.0,), (1.0,), "")
    partition = make_partition(
        data,
        "dirichlet",
        clients=clients,
        alpha=alpha,
        seed=seed,
        protocol="paper",
        validation_share=0.0,
        options={},
    )
    return [len(own) for own in partition.train]


def phases(sizes: list[int], batch: int, epochs: int, *, by_epoch: bool) -> list[Phase]:
    """What BatchNorm asks for: steps of one batch size each."""
    waiting = []
    for n in sizes:
        steps = steps_per_epoch(n, batch, batch_statistics=True)
        own = draw_batches(Feed(), n, batch, epochs * steps, DrawAddress(0, 0, 0), batch_statistics=True).sizes
        waiting.append(runs_of(own[:, None], steps if by_epoch else 0))
    return phases_of(waiting)


def busy(packings: list[Packing]) -> tuple[float, int]:
    """The share of lane-steps that train a client, and the number of calls."""
    work = sum(int((one.row != IDLE).sum()) for one in packings)
    return work / sum(one.row.size for one in packings), sum(len(one.row) for one in packings)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--alphas", type=float, nargs="+", default=[0.1, 0.5, 1.0])
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--lanes", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    print("| alpha | schedule | busy | calls | packings |")
    print("|---:|---|---:|---:|---:|")
    for alpha in args.alphas:
        sizes = client_sizes(alpha, args.clients, args.seed)
        whole = [
            pack(p.lengths(args.clients), args.lanes) for p in phases(sizes, args.batch, args.epochs, by_epoch=False)
        ]
        split = [
            pack(p.lengths(args.clients), args.lanes) for p in phases(sizes, args.batch, args.epochs, by_epoch=True)
        ]
        padded = pack([args.epochs * steps_per_epoch(n, args.batch, batch_statistics=False) for n in sizes], args.lanes)
        for name, packings in (
            ("one number of lanes", whole),
            ("runs end with epochs", split),
            ("and lanes become fewer", [part for one in split for part in narrowed(one)]),
            ("short batches padded", narrowed(padded)),
        ):
            share, calls = busy(packings)
            print(f"| {alpha:g} | {name} | {share:.0%} | {calls} | {len(packings)} |")


if __name__ == "__main__":
    main()
