"""How many of a GPU's lanes are busy while clients of unequal size train?

    python docs/examples/busy_lanes.py
    python docs/examples/busy_lanes.py --alphas 0.1 --epochs 1 --seed 3

Prints, for a data set of CIFAR-10's size over Dirichlet clients, what share of the lanes that a call has trains a
client, how many lanes a call has on average, and what share of the most lanes (64) trains a client. Then how often the
step is called, how many packings there are, and how many shapes a step is recorded for (numbers of lanes and of
samples). With one number of lanes from beginning to end and runs that go on over the ends of epochs; with runs that
end there; with fewer lanes where those hold all that still train; and with short batches padded, so that runs need no
end. It needs no pictures, only sizes.
"""

import argparse
from typing import NamedTuple

import numpy as np

from bench.data import Dataset
from bench.engine.batches import DrawAddress, draw_batches, steps_per_epoch
from bench.engine.lane_schedule import IDLE, Packing, Phase, narrowed, pack, phases_of, runs_of
from bench.requests import Feed
from bench.samples.division import make_partition

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


def phases(sizes: list[int], batch: int, epochs: int, *, by_epoch: bool, padded: bool = False) -> list[Phase]:
    """With BatchNorm: steps of one batch size each, or all of one size, padded."""
    waiting = []
    for n in sizes:
        steps = steps_per_epoch(n, batch, batch_statistics=True)
        own = draw_batches(Feed(), n, batch, epochs * steps, DrawAddress(0, 0, 0), batch_statistics=True).sizes
        own = np.full_like(own, batch) if padded else own
        waiting.append(runs_of(own[:, None], steps if by_epoch else 0))
    return phases_of(waiting)


class Lanes(NamedTuple):
    """How a schedule uses lanes.

    Attributes:
        calls: how often the step is called.
        width: lanes that a call has, on average.
        training: lanes of a call that train a client, on average.
    """

    calls: int
    width: float
    training: float


def lanes_of(packings: list[Packing]) -> Lanes:
    """The averages over all calls of a schedule."""
    calls = sum(len(one.row) for one in packings)
    training = sum(int((one.row != IDLE).sum()) for one in packings)
    return Lanes(calls, sum(one.row.size for one in packings) / calls, training / calls)


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
    print(f"| alpha | schedule | busy | lanes per call | of {args.lanes} | calls | packings | shapes |")
    print("|---:|---|---:|---:|---:|---:|---:|---:|")
    for alpha in args.alphas:
        sizes = client_sizes(alpha, args.clients, args.seed)
        how = {
            "one number of lanes": phases(sizes, args.batch, args.epochs, by_epoch=False),
            "runs end with epochs": phases(sizes, args.batch, args.epochs, by_epoch=True),
            "short batches padded": phases(sizes, args.batch, args.epochs, by_epoch=False, padded=True),
        }
        whole, split, padded = (
            [(p.sizes, pack(p.lengths(args.clients), args.lanes)) for p in found] for found in how.values()
        )
        for name, packings in (
            ("one number of lanes", whole),
            ("runs end with epochs", split),
            ("and lanes become fewer", [(samples, part) for samples, one in split for part in narrowed(one)]),
            ("and short batches are padded", [(samples, part) for samples, one in padded for part in narrowed(one)]),
        ):
            calls, width, training = lanes_of([one for _, one in packings])
            shapes = {(samples, one.row.shape[1]) for samples, one in packings}
            shares = f"{training / width:.0%} | {width:.1f} | {training / args.lanes:.0%}"
            print(f"| {alpha:g} | {name} | {shares} | {calls} | {len(packings)} | {len(shapes)} |")


if __name__ == "__main__":
    main()
