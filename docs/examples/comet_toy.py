"""COMET's linear regression (Cho et al. 2023, Figure 2): whose knowledge a client should be pulled towards.

Three clients have lines near a common one, at distances of about 2, 5 and 200. Each starts from its own least-squares
fit; one round of COMET's program, run by the engine with squared losses, pulls it towards the mean prediction of all
(one cluster) or of its own cluster (two). One cluster lets the stranger drag all clients away, as FedAvg does; two
leave it alone. The paper gives neither the numbers of samples (here 100 private and 100 public ones), nor their noise
(standard normal), nor whether sigma is a standard deviation (it is here).
Prints a Markdown table; docs/methods/comet.md shows it. Takes seconds.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from bench.data import Dataset, Partition
from bench.federation.federation import Federation
from bench.method import METHODS, Batch, Client, Predict, Program, State, Train, Values
from bench.models.network import Network
from bench.plugin import MODELS
from bench.rng import generator
from bench.settings import Settings
from methods.comet import COMET

Array = npt.NDArray[np.float64]

SAMPLES = 100  # of each client, and public ones
SIGMAS = (2.0, 5.0, 200.0)
LAMBDA = 50.0
STEPS = 200


class Line(Network):
    """A linear function of all inputs but the last, which is what it should give."""

    def features(self, x: Tensor) -> Tensor:
        return x[:, :-1]


@MODELS.register("line")
def line(shape: tuple[int, ...], classes: int) -> nn.Module:
    """A line through the origin; inputs carry their target as last entry, for labels are classes."""
    return Line(nn.Identity(), nn.Linear(shape[0] - 1, 1, bias=False))


@METHODS.register("comet_squared")
class Squared(COMET):
    """COMET's program with squared losses: predictions are outputs, not probabilities, and targets numbers."""

    def client_round(self, client: Client, down: State) -> Program:
        program, answer = super().client_round(client, down), None
        while True:
            try:
                request = program.send(answer)
            except StopIteration as stop:
                return stop.value
            if isinstance(request, Predict):
                request = replace(request, output="logits")
            elif isinstance(request, Train):
                request = request._replace(loss=pulled_squares)
            answer = yield request


def pulled_squares(model: Any, values: Values, batch: Batch, ctx: Any) -> Any:
    """Mean squared error + lam times the mean over public samples of (s(w, x) - target(x))^2."""
    public = batch.side["public"]
    error = model(values["w"], batch.x)[:, 0] - batch.x[:, -1]
    distance = (model(values["w"], public.x) - ctx.target[public.index])[:, 0]
    return batch.mean(error**2) + ctx.hp.lam * public.mean(distance**2)


def pulled(
    private: Sequence[tuple[Array, Array]], public: Array, start: Sequence[Array], *, lam: float, clusters: int
) -> list[Array]:
    """The clients' coefficients after one round that starts from `start`.

    Args:
        private: inputs `[n, d]` and targets `[n]` of each client; equal numbers of samples.
        public: inputs `[n, d]`.
        start: coefficients `[d]` of each client.
        lam, clusters: COMET's hyperparameters.
    """
    n, clients = len(public), len(private)
    x = np.concatenate([np.column_stack(one) for one in private]).astype(np.float32)
    steepest = max(np.linalg.eigvalsh(inputs.T @ inputs + lam * public.T @ public)[-1] / n for inputs, _ in private)
    settings = Settings(
        method="comet_squared", hp={"c": clusters, "lam": lam, "public_batch": n}, model="line", clients=clients,
        dtype="float64", batch_size=n, steps=STEPS, lr=0.5 / float(steepest),
    )  # fmt: skip
    none = np.empty(0, np.int64)
    partition = Partition(tuple(np.split(np.arange(len(x)), clients)), (none,) * clients, (none,) * clients, none)
    queries = _samples(np.column_stack([public, np.zeros(n)]).astype(np.float32))
    federation = Federation(settings, dataset=_samples(x), partition=partition, public=queries)
    for i, w in enumerate(start):
        client = federation.clients.copy(i)
        client.state["personal"] = client.state["personal"].with_weights(torch.from_numpy(w))
        federation.clients.commit(client, copies=True)
    federation.advance()
    return [federation.clients[i].state["personal"].weights.numpy() for i in range(clients)]


def _samples(x: npt.NDArray[np.float32]) -> Dataset:
    zeros, ones = (0.0,) * x.shape[1], (1.0,) * x.shape[1]
    return Dataset("line", x, np.zeros(len(x), np.int64), len(x), 1, zeros, ones, "line")


def fit(x: Array, y: Array) -> Array:
    """Least squares."""
    return np.asarray(np.linalg.lstsq(x, y, rcond=None)[0], dtype=np.float64)


def figure(seed: int) -> dict[str, list[Array]]:
    """The coefficients of Figure 2's three clients: true, fitted alone and together, with one cluster and with two."""
    rng = generator("comet toy", seed)
    theta = rng.uniform(-10, 10, 2)
    true = [theta + rng.normal(0, sigma, 2) for sigma in SIGMAS]
    inputs = [rng.uniform(-10, 10, (SAMPLES, 2)) for _ in SIGMAS]
    private = [(x, x @ w + rng.normal(size=SAMPLES)) for x, w in zip(inputs, true, strict=True)]
    public = rng.uniform(-10, 10, (SAMPLES, 2))
    alone = [fit(x, y) for x, y in private]
    together = fit(np.concatenate(inputs), np.concatenate([y for _, y in private]))
    return {
        "true": true,
        "alone": alone,
        "FedAvg (all data)": [together] * len(SIGMAS),
        "COMET, c = 1": pulled(private, public, alone, lam=LAMBDA, clusters=1),
        "COMET, c = 2": pulled(private, public, alone, lam=LAMBDA, clusters=2),
    }


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    found = figure(seed=0)
    print("| coefficients | " + " | ".join(f"client {i + 1} (sigma {s:g})" for i, s in enumerate(SIGMAS)) + " |")
    print("|---|---|---|---|")
    for name, models in found.items():
        print(f"| {name} | " + " | ".join(", ".join(f"{entry:.2f}" for entry in w) for w in models) + " |")


if __name__ == "__main__":
    main()
