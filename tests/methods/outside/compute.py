"""Rounds of methods as public libraries compute them: writes numbers.json, against which test_outside.py holds ours.

Nothing of this repository is imported here, and no test imports this file. It needs packages that the project does not:

    pip install torch fedlab==1.3.0 flwr==1.42.0 fedjax==0.0.17 jax==0.4.38 jaxlib==0.4.38 nvidia-ml-py
    python tests/methods/outside/compute.py

All are Apache-2.0. The problem is made up here: four clients of unequal sizes, a net with ReLU and biases, full
batches, three local steps, three rounds of all clients, float64. FedLab's FedDyn is left out: its local terms are made
of detached parameters and move nothing, and its server subtracts the old model once, not once for each client.
"""

import json
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

torch.set_default_dtype(torch.float64)

SIZES, FEATURES, HIDDEN, CLASSES = [6, 9, 12, 5], 4, 5, 3
LR, STEPS, ROUNDS = 0.3, 3, 3
RNG = np.random.default_rng(20261123)
X = [RNG.normal(size=(n, FEATURES)).astype(np.float32) for n in SIZES]
Y = [(RNG.integers(0, 2, n) + i % 2) % CLASSES for i, n in enumerate(SIZES)]  # of classes 0 and 1, or 1 and 2
SHAPES = [(HIDDEN, FEATURES), (HIDDEN,), (CLASSES, HIDDEN), (CLASSES,)]
STARTS = [np.concatenate([RNG.uniform(-0.7, 0.7, shape).ravel() for shape in SHAPES]) for _ in range(3)]

Result = dict[str, Any]
EVERYBODY = range(len(SIZES))


def net(start: np.ndarray) -> nn.Module:
    """The net with the given parameters, in the order of `named_parameters`."""
    module = nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES))
    nn.utils.vector_to_parameters(torch.from_numpy(start.copy()), module.parameters())
    return module


def batches(client: int) -> list[tuple[Tensor, Tensor]]:
    """One epoch of a client: all its samples at once."""
    return [(torch.from_numpy(X[client]).double(), torch.from_numpy(Y[client]))]


def start() -> Tensor:
    return torch.from_numpy(STARTS[0].copy())


def trainer(kind: type[Any], *optim: float) -> Any:
    """A client trainer of FedLab for as many clients as there are."""
    found = kind(net(STARTS[0]), len(SIZES))
    found.setup_optim(STEPS, max(SIZES), LR, *optim)
    return found


def weighted(models: Sequence[Tensor]) -> Tensor:
    """FedLab's mean by numbers of samples."""
    from fedlab.utils.aggregator import Aggregators

    mean: Tensor = Aggregators.fedavg_aggregate(list(models), torch.tensor(SIZES, dtype=torch.float64))
    return mean


def fedprox(mu: float = 0.4) -> Result:
    from fedlab.contrib.algorithm.fedprox import FedProxSerialClientTrainer

    client, w = trainer(FedProxSerialClientTrainer, mu), start()
    for _ in range(ROUNDS):
        w = weighted([client.train(w, batches(i), mu)[0].clone() for i in EVERYBODY])
    return {"library": "fedlab", "hp": {"mu": mu}, "gm": w}


def scaffold(server_lr: float = 0.7) -> Result:
    from fedlab.contrib.algorithm.scaffold import ScaffoldSerialClientTrainer, ScaffoldServerHandler

    client, server = trainer(ScaffoldSerialClientTrainer), ScaffoldServerHandler(net(STARTS[0]), ROUNDS, 1.0)
    server.num_clients = len(SIZES)
    server.setup_optim(server_lr)
    for _ in range(ROUNDS):
        w, c = (tensor.clone() for tensor in server.downlink_package)
        server.global_update([client.train(i, w, c, batches(i)) for i in EVERYBODY])
    return {"library": "fedlab", "hp": {"server_lr": server_lr}, "gm": server.model_parameters}


def ditto(lam: float = 0.6) -> Result:
    from fedlab.contrib.algorithm.ditto import DittoSerialClientTrainer

    client, w = trainer(DittoSerialClientTrainer), start()
    client.args = SimpleNamespace(epochs=STEPS, lr=LR, mu=lam)
    own = [start() for _ in SIZES]
    for _ in range(ROUNDS):
        trained = []
        for i in EVERYBODY:
            personal, common = client.train(w, own[i], batches(i))
            own[i] = personal.clone()
            trained.append(common.clone())
        w = weighted(trained)
    return {"library": "fedlab", "hp": {"lam": lam}, "gm": w, "pm": own}


def fedasync(alpha: float = 0.6, poly_a: float = 0.5) -> Result:
    """The server alone: which of the starts arrives, and the version that its client had downloaded."""
    from fedlab.contrib.algorithm.basic_server import AsyncServerHandler

    server = AsyncServerHandler(net(STARTS[0]), ROUNDS)
    server.setup_optim(alpha, "polynomial", poly_a)
    arrivals = [(1, 0), (2, 0), (1, 1), (0, 0)]
    for which, downloaded in arrivals:
        server.load([torch.from_numpy(STARTS[which]), torch.tensor([float(downloaded)])])
    hp = {"alpha": alpha, "poly_a": poly_a}
    return {"library": "fedlab", "hp": hp, "arrivals": arrivals, "gm": server.model_parameters}


def under(strategy: Any) -> Tensor:
    """Rounds of FedAvg's clients, trained by FedLab, under a strategy of Flower."""
    from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
    from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays

    client, w = trainer(SGDSerialClientTrainer), start()
    for round in range(1, ROUNDS + 1):
        results = []
        for i, n in enumerate(SIZES):
            trained = client.train(w, batches(i))[0].numpy().copy()
            results.append((None, FitRes(Status(Code.OK, ""), ndarrays_to_parameters([trained]), n, {})))
        parameters, _ = strategy.aggregate_fit(round, results, [])
        w = torch.from_numpy(parameters_to_ndarrays(parameters)[0].copy())
    return w


def flower(name: str, **given: float) -> Any:
    """A strategy of Flower that begins with the first start."""
    from flwr.common import ndarrays_to_parameters
    from flwr.server import strategy

    return getattr(strategy, name)(initial_parameters=ndarrays_to_parameters([STARTS[0]]), **given)


def fedavg() -> Result:
    return {"library": "flwr", "hp": {}, "gm": under(flower("FedAvg"))}


def fedavgm(beta: float = 0.8, server_lr: float = 0.7) -> Result:
    strategy = flower("FedAvgM", server_learning_rate=server_lr, server_momentum=beta)
    return {"library": "flwr", "hp": {"beta": beta, "server_lr": server_lr}, "gm": under(strategy)}


def fedyogi(eta: float = 0.05, beta1: float = 0.7, beta2: float = 0.9, tau: float = 1e-9) -> Result:
    """With a tiny tau: Flower's second moments start at 0, the paper's at tau^2. (Its FedAdam corrects a bias.)"""
    hp = {"kind": "yogi", "eta": eta, "beta1": beta1, "beta2": beta2, "tau": tau}
    strategy = flower("FedYogi", eta=eta, beta_1=beta1, beta_2=beta2, tau=tau)
    return {"library": "flwr", "method": "fedopt", "hp": hp, "gm": under(strategy)}


def fedadagrad(eta: float = 0.05, tau: float = 1e-9) -> Result:
    """Flower's has no first moment."""
    hp = {"kind": "adagrad", "eta": eta, "beta1": 0.0, "tau": tau}
    return {"library": "flwr", "method": "fedopt", "hp": hp, "gm": under(flower("FedAdagrad", eta=eta, tau=tau))}


def hypcluster() -> Result:
    import jax

    jax.config.update("jax_enable_x64", True)
    from fedjax.algorithms.hyp_cluster import hyp_cluster
    from fedjax.core import client_datasets, optimizers

    class FullBatches(client_datasets.ClientDataset):
        """Its own batches would run over the ends of epochs."""

        def shuffle_repeat_batch(self, *_: Any) -> list[Any]:
            return [dict(self.raw_examples)] * STEPS

    def loss(w: list[Any], batch: Any, _: Any) -> Any:
        scores = jax.nn.relu(batch["x"] @ w[0].T + w[1]) @ w[2].T + w[3]
        return -jax.numpy.take_along_axis(jax.nn.log_softmax(scores), batch["y"][:, None], 1)[:, 0]

    def parts(w: np.ndarray) -> list[Any]:
        cuts = np.cumsum([np.prod(shape) for shape in SHAPES])[:-1]
        return [jax.numpy.array(part.reshape(shape)) for part, shape in zip(np.split(w, cuts), SHAPES, strict=True)]

    looking = client_datasets.PaddedBatchHParams(batch_size=max(SIZES))
    training = client_datasets.ShuffleRepeatBatchHParams(batch_size=max(SIZES))
    algorithm = hyp_cluster(loss, optimizers.sgd(LR), optimizers.sgd(1.0), looking, training)
    state, choices = algorithm.init([parts(w) for w in STARTS]), []
    data = [FullBatches({"x": X[i].astype(np.float64), "y": Y[i]}) for i in EVERYBODY]
    clients = [(bytes([i]), data[i], jax.random.PRNGKey(0)) for i in EVERYBODY]
    for _ in range(ROUNDS):
        state, said = algorithm.apply(state, clients)
        choices.append([int(said[bytes([i])]["cluster_id"]) for i in EVERYBODY])
    models = [torch.from_numpy(np.concatenate([np.ravel(part) for part in w])) for w in state.cluster_params]
    return {"library": "fedjax", "hp": {"c": len(STARTS)}, "choices": choices, "models": models}


METHODS: list[Callable[[], Result]] = [
    fedprox, scaffold, ditto, fedasync, fedavg, fedavgm, fedyogi, fedadagrad, hypcluster,
]  # fmt: skip


def main() -> None:
    """Write numbers.json beside this file."""
    results = {method.__name__: method() for method in METHODS}
    libraries = sorted({result["library"] for result in results.values()})
    problem = {
        "sizes": SIZES, "x": np.concatenate(X), "y": np.concatenate(Y), "starts": STARTS, "lr": LR, "steps": STEPS,
        "rounds": ROUNDS, "hidden": HIDDEN, "classes": CLASSES,
    }  # fmt: skip
    document = {"made_with": {name: version(name) for name in [*libraries, "torch"]}, "problem": problem, **results}
    text = json.dumps(document, default=lambda array: array.tolist())
    text = text.replace(', "', ',\n"').replace("], [", "],\n[")
    (Path(__file__).parent / "numbers.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
