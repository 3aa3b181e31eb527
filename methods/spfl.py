"""SPFL: "Personalized Heterogeneous Federated Learning with Gradient Similarity" (anonymous), Algorithm 1.

The server keeps one model per client. Every gamma rounds all models are reset to their mean, and the cosines of the
updates that the clients make from there say, stage by stage of the network, how much a client's model takes from every
other client's update until the next time. `spfl_w` mixes the trained models themselves.
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

    `stages` names the prefixes of every stage but the first, which is all the rest; `similarity` says for each stage
    with whom it is mixed (`local`: with nobody). `gamma` None: similarities are computed in the first round only.
    Equation 7 as printed is `scale: paper` with `alpha: 0.01`. `fine_steps` steps of SGD on a client's own data follow
    before every test (Table 8), with batches of `fine_batch` (None: the cell's), and are thrown away.
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
    """One model per client on the server, moved by all clients' updates, weighted by their similarity."""

    Hyper = Hyper
    trains = "pm"
    everyone = True

    def init(self, server: Server) -> None:
        self._stages(server.initial_model())  # an error now if `stages` names what the model does not have
        server.state["models"] = dict.fromkeys(sorted(server.sizes), server.initial_model())
        server.state |= {"mean": server.initial_model(), "resync": 0}

    def broadcast(self, server: Server, client: Client) -> State:
        """The client's model; in a round that starts with a re-synchronisation all get the mean of the models."""
        state = server.state
        if server.round == state["resync"]:
            return {"model": state["mean"], "probe": True}
        # A client that took no part in training has no model of its own yet.
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
        """The cosines of the last re-synchronisation's updates, stage by stage."""
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
    """Steps of SGD in a row on one batch, every gradient taken where the last step has led."""
    for _ in range(ctx.hp.steps_per_batch):
        gradients, values = do.gradient(cross_entropy, values, batch, ctx)
        values = do.update(values, gradients)
    return values
