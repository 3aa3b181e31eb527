"""SPFL: "Personalized Heterogeneous Federated Learning with Gradient Similarity" (anonymous), Algorithm 1.

The server keeps one model per client. Every gamma rounds all clients start from the mean of the models. The cosines of
their updates from there determine, for each stage of the network, the weight of every client's update in each client's
model until the next such round. `spfl_w` mixes the trained models instead of the updates.
"""

from dataclasses import replace
from typing import Any, Literal, Self

import torch
from pydantic import model_validator
from torch import Tensor

from bench.method import METHODS, SGD, Batch, Client, Do, Feed, Hyperparameters, Message, Method, Params, Program
from bench.method import Server, State, Train, Upload, Values, cross_entropy, hp, join, mean
from methods.mixing import Similarity, cosines, mix, rows
from methods.variants import variant


class Hyper(Hyperparameters):
    """Hyperparameters of SPFL.

    `stages` names the prefixes of every stage except the first, which is the rest of the network. `similarity` chooses
    the weights of each stage (`local`: it is not mixed). `gamma` None: similarities are computed only in the
    first round. Equation 7 as printed is `scale: paper` with `alpha: 0.01`. Before every test (Table 8) a copy of the
    model takes `fine_steps` steps of SGD on the client's data, in batches of `fine_batch` (None: the cell's).
    """

    gamma: int | None = hp(10, ge=1, static=True)
    steps_per_batch: int = hp(2, ge=1, static=True)
    stages: tuple[tuple[str, ...], ...] = hp((("head",),), static=True)
    similarity: tuple[Similarity, ...] = hp(("softmax", "softmax"), static=True)
    mix: Literal["updates", "weights"] = hp("updates", static=True)
    scale: Literal["released", "paper"] = hp("released", static=True)
    alpha: float = hp(1.0, gt=0)
    fine_steps: int = hp(0, ge=0, static=True)
    fine_lr: float = hp(0.001, gt=0, static=True)
    fine_batch: int | None = hp(None, ge=1, static=True)

    @model_validator(mode="after")
    def _one_similarity_per_stage(self) -> Self:
        if len(self.similarity) != len(self.stages) + 1:
            raise ValueError(
                f"similarity needs {len(self.stages) + 1} entries: the first stage, then those of `stages`"
            )
        return self

    def degenerate(self) -> list[str]:
        found = []
        if set(self.similarity) == {"local"} and self.gamma is None:
            found.append("similarity local in all stages without re-synchronisation: SPFL is Local")
        if set(self.similarity) == {"uniform"} and self.alpha == 1 and self.scale == "released":
            found.append("similarity uniform in all stages: SPFL is FedAvg")
        return found


class SPFLWeightsHyper(Hyper):
    """SPFL-w: one model per client on the server, mixed from all clients' trained models."""

    mix: Literal["updates", "weights"] = hp("weights", static=True)


@METHODS.register("spfl")
class SPFL(Method):
    """One model per client on the server, changed by all clients' updates, weighted by their similarity."""

    Hyper = Hyper
    trains = "pm"
    everyone = True

    def init(self, server: Server) -> None:
        self._stages(server.initial_model())  # fails early if `stages` names parts that the model does not have
        server.state["models"] = dict.fromkeys(sorted(server.sizes), server.initial_model())
        server.state |= {"mean": server.initial_model(), "resync": 0}

    def broadcast(self, server: Server, client: Client) -> State:
        """The client's model; in a round of re-synchronisation all clients get the mean of the models."""
        state = server.state
        if server.round == state["resync"]:
            return {"model": state["mean"], "probe": True}
        # A client that has not taken part in training has no model of its own yet.
        return {"model": state["models"].get(client.id, state["mean"]), "probe": False}

    def client_round(self, client: Client, down: State) -> Program:
        start = {"w": down["model"]}
        if down["probe"]:
            probe = yield Train(start, step=repeated_step, feed=Feed(stream=1))
            yield Upload({"probe": down["model"].weights - probe["w"].weights})
        trained = yield Train(start, step=repeated_step)
        yield Upload({"model": trained["w"]})
        return trained["w"]

    def aggregate(self, server: Server, messages: list[Message]) -> None:
        state = server.state
        if probes := [m for m in messages if "probe" in m.values]:
            like = messages[0].base["model"]
            stages = [self._stages(like.with_weights(m["probe"])) for m in probes]
            state["cosines"] = [cosines([w.weights for w in stage]) for stage in zip(*stages, strict=True)]
        answers = [m for m in messages if "model" in m.values]
        sizes = torch.as_tensor([m.weight for m in answers]).to(state["cosines"][0])
        before = [self._stages(m.base["model"]) for m in answers]
        after = [self._stages(m["model"]) for m in answers]
        mixed = []
        for s, kind in enumerate(self.hp.similarity):
            shares = rows(state["cosines"][s], kind)
            mixed.append(mix([one[s] for one in before], [one[s] for one in after], shares, sizes, self.hp))
        models = [join(*stages) for stages in zip(*mixed, strict=True)]
        state["models"] = {m.client: w for m, w in zip(answers, models, strict=True)}
        state["mean"] = mean([replace(m, values={"w": state["models"][m.client]}) for m in answers], "w", equal=True)
        due = self.hp.gamma is not None and (server.round + 1) % self.hp.gamma == 0
        state["resync"] = server.round + 1 if due else None

    def personal(self, server: Server, client: Client, down: State) -> Program | Params:
        return self._fine_tuned(down["model"]) if self.hp.fine_steps else down["model"]

    def relations(self, server: Server) -> dict[str, Tensor]:
        """The cosines of the updates in the last re-synchronisation, for each stage."""
        names = ["first stage", *(" and ".join(prefixes) for prefixes in self.hp.stages)]
        return {f"similarity of {name}": s for name, s in zip(names, server.state["cosines"], strict=True)}

    def _fine_tuned(self, w: Params) -> Program:
        trained = yield Train(
            {"w": w},
            loss=cross_entropy,
            steps=self.hp.fine_steps,
            feed=Feed(batch_size=self.hp.fine_batch),
            optimizer=SGD(lr=self.hp.fine_lr),
        )
        return trained["w"]

    def _stages(self, w: Params) -> list[Params]:
        later = self.hp.stages
        return [w.without(*(prefix for stage in later for prefix in stage)), *(w.part(*stage) for stage in later)]


variant("spfl_w", SPFL, SPFLWeightsHyper)


def repeated_step(do: Do, values: Values, batch: Batch, ctx: Any) -> Values:
    """`steps_per_batch` consecutive steps of SGD on the same batch, each with a new gradient."""
    for _ in range(ctx.hp.steps_per_batch):
        gradients, values = do.gradient(cross_entropy, values, batch, ctx)
        values = do.update(values, gradients)
    return values
