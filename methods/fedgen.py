"""FedGen: Zhu et al. 2021, "Data-Free Knowledge Distillation for Heterogeneous Federated Learning", Algorithm 1.

The server trains a generator of features for given labels with the clients' heads; clients also learn from these.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from bench.method import (
    METHODS, Adam, Batch, Categorical, Client, Feed, Hyperparameters, Message, Method, Normal, Program, Range, Server,
    State, Train, Upload, Values, cross_entropy, hp,
)  # fmt: skip

FLOOR = 1e-4  # the weights of the clients' terms do not decay below this
MIN_COUNT = 2  # the generator is trained on labels of which some selected client has this many samples


class Hyper(Hyperparameters):
    """Hyperparameters of FedGen: the authors' values for MNIST (for CIFAR: hidden 512, noise 64); see the card."""

    alpha: float = hp(10.0, ge=0, search=Range(0.1, 10, log=True))
    beta: float = hp(10.0, ge=0, search=Range(0.1, 10, log=True))
    decay: float = hp(0.98, gt=0, le=1)
    diversity: float = hp(1.0, ge=0)
    generator_steps: int = hp(50, ge=0, static=True)
    generator_batch: int = hp(32, ge=2, static=True)
    generator_lr: float = hp(3e-4, gt=0, static=True)
    generator_decay: float = hp(0.01, ge=0, static=True)
    hidden: int = hp(256, ge=1, static=True)
    noise: int = hp(32, ge=1, static=True)

    def degenerate(self) -> list[str]:
        return ["alpha = beta = 0: FedGen is FedAvg"] if self.alpha == self.beta == 0 else []


class Generator(nn.Module):
    """Maps noise and a label to a feature vector, the input of the head."""

    def __init__(self, noise: int, classes: int, hidden: int, width: int) -> None:
        super().__init__()
        self.classes = classes
        self.layers = nn.Sequential(
            nn.Linear(noise + classes, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, width)
        )

    def forward(self, eps: Tensor, y: Tensor) -> Tensor:
        """Features `[samples, width]` for noise `[samples, noise]` and labels `[samples]`."""
        one_hot = (y[:, None] == torch.arange(self.classes, device=y.device)).to(eps.dtype)
        out: Tensor = self.layers(torch.cat([eps, one_hot], 1))
        return out


@METHODS.register("fedgen")
class FedGen(Method):
    """FedAvg whose clients also learn from features made by a generator that the server trains."""

    Hyper = Hyper
    symmetric = False  # the generated samples are drawn for each client
    mean_of = ("model",)

    def init(self, server: Server) -> None:
        super().init(server)
        w, classes, o = server.state["model"], server.num_classes, self.hp
        width = w.tensors()["head.weight"].shape[1]
        with torch.device("meta"):
            module = Generator(o.noise, classes, o.hidden, width)
        server.state["generator"] = server.build(f"fedgen({o.noise}+{classes}->{o.hidden}->{width})", module)
        server.state["adam"] = None
        server.state["seen"] = w.weights.new_zeros(classes)  # 1 for a label that some client reported

    def broadcast(self, server: Server, client: Client) -> State:
        down = super().broadcast(server, client)
        if server.round == 0:  # the generator has learned nothing yet
            return down
        down |= {name: _decayed(getattr(self.hp, name), self.hp.decay, server.round) for name in ("alpha", "beta")}
        return down | {"generator": server.state["generator"], "seen": server.state["seen"]}

    def client_round(self, client: Client, down: State) -> Program:
        w, noise = down["model"], Normal((self.hp.noise,))
        request = Train({"w": w}, loss=cross_entropy)
        if "generator" in down:
            weights = {name: w.weights.new_tensor(down[name]) for name in ("alpha", "beta")}
            request = Train(
                {"w": w},
                loss=client_loss,
                context={"generator": down["generator"], **weights},
                draws={"eps": noise, "label_eps": noise, "label": Categorical(tuple(down["seen"].tolist()))},
            )
        trained = yield request
        yield Upload({"model": trained["w"], "counts": client.label_counts})
        return trained["w"]

    def aggregate(self, server: Server, messages: list[Message]) -> Program:
        o, head = self.hp, messages[0]["model"].part("head")
        counts = torch.stack([m["counts"] for m in messages]).to(head.weights.dtype)
        server.state["seen"] = torch.maximum(server.state["seen"], (counts.sum(0) > 0).to(counts.dtype))
        qualified = (counts.amax(0) >= MIN_COUNT).to(counts.dtype)
        if qualified.any():
            trained = yield Train(
                {"generator": server.state["generator"]},
                loss=generator_loss,
                steps=o.generator_steps,
                feed=Feed("none", o.generator_batch),
                optimizer=Adam(o.generator_lr * o.decay**server.round, weight_decay=o.generator_decay),
                optimizer_state=server.state["adam"],
                context={
                    "head": head,
                    "heads": torch.stack([m["model"].part("head").weights for m in messages]),
                    "share": counts / counts.sum(0).clamp(min=1),
                },
                draws={"eps": Normal((o.noise,)), "label": Categorical(tuple(qualified.tolist()))},
            )
            server.state["generator"], server.state["adam"] = trained["generator"], trained.optimizer_state
        super().aggregate(server, messages)


def _decayed(weight: float, decay: float, round: int) -> float:
    return max(FLOOR, weight * decay**round) if weight else 0.0


def client_loss(model: Any, values: Values, batch: Batch, ctx: Any) -> Tensor:
    """CE + alpha CE(head(G(eps, y')), y') + beta KL(head(G(eps, y)) || w(x)), whose first argument is a constant."""
    w = values["w"]
    logits = model(w, batch.x)

    def imagined(eps: Tensor, y: Tensor) -> Tensor:
        return model.head(w, model.call("forward", ctx.generator, eps, y, stats="frozen"), stats="frozen")

    label = batch.draws["label"]
    answer = functional.cross_entropy(imagined(batch.draws["label_eps"], label), label, reduction="none")
    target = imagined(batch.draws["eps"], batch.y).detach().log_softmax(1)
    latent = functional.kl_div(logits.log_softmax(1), target, reduction="none", log_target=True).sum(1)
    plain = functional.cross_entropy(logits, batch.y, reduction="none")
    return batch.mean(plain + ctx.alpha * answer + ctx.beta * latent)


def generator_loss(model: Any, values: Values, batch: Batch, ctx: Any) -> Tensor:
    """The heads' cross-entropy on z = G(eps, y), by shares of y, + exp(-mean_pq(msq(eps_p - eps_q) mab(z_p - z_q)))."""
    eps, y = batch.draws["eps"], batch.draws["label"]
    z = model.call("forward", values["generator"], eps, y)

    def costs(head: Tensor) -> Tensor:
        return functional.cross_entropy(model.head(ctx.head.with_weights(head), z, stats="frozen"), y, reduction="none")

    taught = batch.mean((ctx.share[:, y] * torch.vmap(costs)(ctx.heads)).sum(0))
    apart = (eps[:, None] - eps).square().mean(2) * (z[:, None] - z).abs().mean(2)
    return taught + ctx.hp.diversity * torch.exp(-apart.mean())
