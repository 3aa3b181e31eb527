"""On what scale does SCD's spectral term pull? Its effective proximal coefficient on three architectures.

    python docs/examples/scd_scale.py [scale.csv]

A proximal term lambda/2 ||w - v||^2 has a gradient of norm lambda ||w - v||, so the norm of a term's gradient divided
by ||w - v|| is the lambda of Ditto or FedProx that would pull as hard. It is measured where a run without any term
(FedAvg's generic and Local's personalized models) has gone after some rounds, at the published lambdas of both phases.
The cosine says whether the pull leads towards the other model at all: 1 for a proximal term.

Reads `data/mnist_16.npz` (made by scd_study.py) and `data/cifar10_jpeg.npz`. Takes minutes, ResNet-18 most of them.
"""

import sys
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from scd_study import as_markdown

from bench.federation.federation import Federation
from bench.params import Params
from bench.plugin import DATASETS
from bench.samples.division import make_partition
from bench.settings import Settings
from methods.scd import Hyper
from methods.spectrum import divergence, spectrum

PUBLISHED = {"generic": 0.05, "personal": 0.01}
READINGS: dict[str, dict[str, Any]] = {
    "generalised_kl": {"preset": "generalised_kl"},
    "simplex": {"preset": "simplex"},
    "mean": {"normalise": "mean", "fft_norm": "backward"},
    "generalised_kl, backward DFT": {"fft_norm": "backward"},
    "as_printed": {"preset": "as_printed"},
}
PROBLEMS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "MLP, digits": ((1, 5, 20), {"model": "mlp", "model_options": {"hidden": 64}, "lr": 0.05, "clients": 20}),
    "CNN, MNIST 16 x 16": (
        (1, 5, 20),
        {
            "dataset": "npz", "dataset_options": {"path": "data/mnist_16.npz"}, "clients": 4,
            "partition_options": {"shares": [0.006, 0, 0.006]},
            "model": "spfl_cnn", "model_options": {"hidden": 60}, "lr": 0.05,
        },
    ),
    "ResNet-18, CIFAR-10": (
        (1, 3),
        {
            "dataset": "npz", "dataset_options": {"path": "data/cifar10_jpeg.npz"},
            "partition_options": {"shares": [0.0015, 0, 0.0002]}, "model": "resnet18", "lr": 0.01, "clients": 2,
        },
    ),
}  # fmt: skip


def main(file: Path | None) -> None:
    """Print a table for each problem; write them, too, if a file is named."""
    torch.set_num_threads(1)
    tables: list[pd.DataFrame] = []
    columns = ["problem", "parameters", "round", "phase", "reading", "coefficient", "cosine"]
    for name in PROBLEMS:
        table = pd.DataFrame(measure(name), columns=columns)
        tables.append(table.map(lambda value: float(f"{value:.3g}") if isinstance(value, float) else value))
        print(f"\n{markdown(tables[-1])}", flush=True)
    if file:
        pd.concat(tables).to_csv(file, index=False)


def markdown(table: pd.DataFrame) -> str:
    """A line for each reading: coefficient (and cosine) in each phase and round."""
    table = table.assign(
        text=[f"{c:.2g} ({cos:.2f})" for c, cos in zip(table["coefficient"], table["cosine"], strict=True)]
    )
    wide = table.pivot_table(
        index=["problem", "reading"], columns=["phase", "round"], values="text", aggfunc="first", sort=False
    )
    wide.columns = [f"{phase}, round {version}" for phase, version in wide.columns]
    return as_markdown(wide)


def measure(name: str) -> list[tuple[Any, ...]]:
    """One run without terms; at some of its rounds the means over clients for every reading and phase."""
    rounds, options = PROBLEMS[name]
    federation = build(options)
    rows: list[tuple[Any, ...]] = []
    for version in range(1, max(rounds) + 1):
        federation.advance()
        if version in rounds:
            generic = federation.server.state["model"]
            personal = [federation.clients[i].state["personal"] for i in federation.clients.ids]
            for reading, given in READINGS.items():
                o = Hyper(**given)
                for phase, lam in PUBLISHED.items():
                    pairs = [(generic, p, o.tau) if phase == "generic" else (p, generic, 1.0) for p in personal]
                    pulls = torch.tensor([pull(w, v, tau, o) for w, v, tau in pairs]).mean(0)
                    rows.append((name, generic.spec.d, version, phase, reading, lam * pulls[0].item(), pulls[1].item()))
    return rows


def pull(student: Params, teacher: Params, tau: float, o: Any) -> tuple[float, float]:
    """Norm of D's gradient over the distance of the models, and the cosine of gradient and difference."""
    w = student.weights.clone().requires_grad_()
    d = divergence(student.with_weights(w), spectrum(teacher, tau, o), tau, o)
    gradient, away = torch.autograd.grad(d, w)[0], student.weights - teacher.weights
    return float(gradient.norm() / away.norm()), float(torch.cosine_similarity(gradient, away, dim=0))


def build(options: dict[str, Any]) -> Federation:
    """Ditto with a lambda of 0 trains FedAvg's generic and Local's personalized models."""
    settings = Settings(method="ditto", hp={"lam": 0.0}, alpha=1.0, momentum=0.5, batch_size=10, **options)
    data = DATASETS.get(settings.dataset)(data_root=Path("."), download=False, **settings.dataset_options)
    partition = make_partition(
        data, "dirichlet", clients=settings.clients, alpha=1.0, seed=0, protocol="honest", validation_share=0.2,
        options=settings.partition_options,
    )  # fmt: skip
    return Federation(settings, dataset=data, partition=partition, public=None)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
