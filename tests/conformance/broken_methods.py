"""Methods that break one promise each, for the conformance suite to find."""

import functools
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from bench.method import (
    METHODS,
    Batch,
    Client,
    Hyperparameters,
    Message,
    Method,
    Params,
    Program,
    Range,
    Server,
    State,
    Train,
    Upload,
    Values,
    cross_entropy,
    hp,
    mean,
)  # fmt: skip

INBOX: dict[str, Params] = {}


@METHODS.register("broken_nothing")
class Sound(Method):
    """FedAvg, and nothing wrong with it."""

    mean_of = ("model",)

    def client_round(self, client: Client, down: State) -> Program:
        trained = yield Train({"w": down["model"]}, loss=cross_entropy)
        yield Upload({"model": trained["w"]})
        return trained["w"]


# -- global randomness ------------------------------------------------------------------------------------------------


class _Noisy(Sound):
    def client_round(self, client: Client, down: State) -> Program:
        trained = yield Train({"w": down["model"]}, loss=cross_entropy)
        w = trained["w"]
        yield Upload({"model": w.with_weights(w.weights + 0.01 * self.noise(w.weights))})

    def noise(self, like: Tensor) -> Tensor:
        """Drawn where it must not be."""
        raise NotImplementedError


@METHODS.register("broken_numpy_noise")
class NumpyNoise(_Noisy):
    def noise(self, like: Tensor) -> Tensor:
        return torch.from_numpy(np.random.randn(len(like)))


@METHODS.register("broken_entropy")
class Entropy(_Noisy):
    def noise(self, like: Tensor) -> Tensor:
        return torch.from_numpy(np.random.default_rng().normal(size=len(like)))


@METHODS.register("broken_seeding")
class Seeding(_Noisy):
    """The same bytes every time, at the expense of everybody else's global generator."""

    def noise(self, like: Tensor) -> Tensor:
        torch.manual_seed(0)
        return torch.randn_like(like)


# -- hidden state -----------------------------------------------------------------------------------------------------


@METHODS.register("broken_odd_rounds")
class OddRounds(Sound):
    """An anchor lies on the method's object, is set in odd rounds and used in even ones."""

    def init(self, server: Server) -> None:
        super().init(server)
        self.anchor = server.state["model"].weights

    def aggregate(self, server: Server, messages: list[Message]) -> None:
        super().aggregate(server, messages)
        model = server.state["model"]
        if server.round % 2 == 0:  # counted from 0
            self.anchor = model.weights
        else:
            server.state["model"] = model.with_weights((model.weights + self.anchor) / 2)


@METHODS.register("broken_scored_memory")
class ScoredMemory(Sound):
    """Scores are of a model that lies on the method's object, anew after every round."""

    trains = "both"

    def aggregate(self, server: Server, messages: list[Message]) -> None:
        super().aggregate(server, messages)
        self.scored = server.state["model"]

    def personal(self, server: Server, client: Client, down: State) -> Params:
        return getattr(self, "scored", server.initial_model())


@METHODS.register("broken_hidden_model")
class HiddenModel(Sound):
    """Clients go on from models that lie in a class variable."""

    kept: ClassVar[dict[int, Params]] = {}

    def client_round(self, client: Client, down: State) -> Program:
        if client.id in self.kept and "met" in client.state:
            w = down["model"]
            down = {"model": w.with_weights((w.weights + self.kept[client.id].weights) / 2)}
        client.state["met"] = True
        w = self.kept[client.id] = yield from super().client_round(client, down)
        return w


@METHODS.register("broken_odd_state")
class OddState(Sound):
    """What a checkpoint cannot hold."""

    def client_round(self, client: Client, down: State) -> Program:
        client.state["seen"] = {client.id}
        return (yield from super().client_round(client, down))


@METHODS.register("broken_late_start")
class LateStart(Sound):
    """What a client starts with depends on when somebody looks at it first."""

    trains = "both"

    def init_client(self, server: Server, client: Client) -> None:
        client.state["personal"] = server.state["model"]

    def personal(self, server: Server, client: Client, down: State) -> Params:
        return client.state["personal"]


# -- changes in place -------------------------------------------------------------------------------------------------


@METHODS.register("broken_in_place")
class InPlace(Sound):
    """The first client changes the model that all receive."""

    def client_round(self, client: Client, down: State) -> Program:
        down["model"].weights.mul_(0.99)
        return (yield from super().client_round(client, down))


@METHODS.register("broken_in_place_upload")
class InPlaceUpload(Sound):
    """The server changes what a client has sent, and may still use."""

    def aggregate(self, server: Server, messages: list[Message]) -> None:
        for m in messages:
            m["model"].weights[0] = 0.0
        super().aggregate(server, messages)


# -- uncounted messages -----------------------------------------------------------------------------------------------


@METHODS.register("broken_class_outbox")
class ClassOutbox(Sound):
    """Clients hand their models over in a class variable."""

    outbox: dict[int, Params] = {}  # noqa: RUF012  # an instance of the next class has its own

    def client_round(self, client: Client, down: State) -> Program:
        trained = yield Train({"w": down["model"]}, loss=cross_entropy)
        self.outbox[client.id] = trained["w"]
        yield Upload({})

    def aggregate(self, server: Server, messages: list[Message]) -> None:
        sent = [Message(m.client, {"model": self.outbox[m.client]}, m.weight, m.version) for m in messages]
        server.state["model"] = mean(sent, "model")


@METHODS.register("broken_outbox")
class Outbox(ClassOutbox):
    """Clients hand their models over on the method's object."""

    def init(self, server: Server) -> None:
        super().init(server)
        self.outbox = {}


@METHODS.register("broken_module_inbox")
class ModuleInbox(Sound):
    """The server hands its model over in a module variable."""

    def broadcast(self, server: Server, client: Client) -> State:
        INBOX["model"] = server.state["model"]
        return {}

    def client_round(self, client: Client, down: State) -> Program:
        return (yield from super().client_round(client, {"model": INBOX["model"]}))


@METHODS.register("broken_reads_client")
class ReadsClient(Sound):
    """The server reads what a client keeps."""

    def init_client(self, server: Server, client: Client) -> None:
        client.state["last"] = server.initial_model()

    def broadcast(self, server: Server, client: Client) -> State:
        model, last = server.state["model"], client.state["last"]
        return {"model": model.with_weights((model.weights + last.weights) / 2)}

    def client_round(self, client: Client, down: State) -> Program:
        client.state["last"] = yield from super().client_round(client, down)


@METHODS.register("broken_writes_client")
class WritesClient(Sound):
    """The server writes into what a client keeps."""

    def broadcast(self, server: Server, client: Client) -> State:
        client.state["model"] = server.state["model"]
        return {}

    def client_round(self, client: Client, down: State) -> Program:
        return (yield from super().client_round(client, {"model": client.state["model"]}))


@METHODS.register("broken_array")
class Array(Sound):
    """Arrays are not counted."""

    def client_round(self, client: Client, down: State) -> Program:
        trained = yield Train({"w": down["model"]}, loss=cross_entropy)
        yield Upload({"model": trained["w"].weights.numpy()})

    def aggregate(self, server: Server, messages: list[Message]) -> None:
        weights = sum(torch.from_numpy(m["model"]) for m in messages) / len(messages)
        server.state["model"] = server.state["model"].with_weights(weights)


@METHODS.register("broken_numbers")
class Numbers(Sound):
    """Plain numbers are not counted either."""

    def broadcast(self, server: Server, client: Client) -> State:
        return {"numbers": server.state["model"].weights.tolist()}

    def client_round(self, client: Client, down: State) -> Program:
        w = client.state["like"]
        return (
            yield from super().client_round(client, {"model": w.with_weights(w.weights.new_tensor(down["numbers"]))})
        )

    def init_client(self, server: Server, client: Client) -> None:
        client.state["like"] = server.initial_model()


@METHODS.register("broken_text")
class Text(Sound):
    """Texts are not counted either."""

    def client_round(self, client: Client, down: State) -> Program:
        trained = yield Train({"w": down["model"]}, loss=cross_entropy)
        yield Upload({"model": json.dumps(trained["w"].weights.tolist())})

    def aggregate(self, server: Server, messages: list[Message]) -> None:
        w = server.state["model"]
        sent = [w.with_weights(w.weights.new_tensor(json.loads(m["model"]))) for m in messages]
        read = [replace(m, values={"model": model}) for m, model in zip(messages, sent, strict=True)]
        server.state["model"] = mean(read, "model")


# -- weights ----------------------------------------------------------------------------------------------------------


@METHODS.register("broken_weights")
class Weights(Sound):
    """Divides by the samples of all clients, also of those that were not selected."""

    def aggregate(self, server: Server, messages: list[Message]) -> None:
        total = sum(server.sizes.values())
        weights = sum(m["model"].weights * (m.weight / total) for m in messages)
        server.state["model"] = server.state["model"].with_weights(weights)


# -- losses -----------------------------------------------------------------------------------------------------------


def with_loss(name: str, loss_for: Callable[[Tensor], Any], hyper: type[Hyperparameters] = Hyperparameters) -> None:
    """Register FedAvg with the loss that each client makes from the received weights."""

    class WithLoss(Sound):
        Hyper = hyper

        def client_round(self, client: Client, down: State) -> Program:
            trained = yield Train({"w": down["model"]}, loss=loss_for(down["model"].weights))
            yield Upload({"model": trained["w"]})

    METHODS.register(f"broken_{name}")(WithLoss)


def pull(model: Any, values: Values, batch: Batch, ctx: Any, center: Any) -> Any:
    return cross_entropy(model, values, batch, ctx) + ((values["w"].weights - center) ** 2).sum()


class Holder:
    """An object with a method that is a loss."""

    def loss(self, model: Any, values: Values, batch: Batch, ctx: Any) -> Any:
        """Plain cross-entropy."""
        return cross_entropy(model, values, batch, ctx)


def branching_loss(model: Any, values: Values, batch: Batch, ctx: Any) -> Any:
    """A Python branch on a tensor."""
    loss = cross_entropy(model, values, batch, ctx)
    return loss if float(loss) > 0 else 2 * loss


def padded_loss(model: Any, values: Values, batch: Batch, ctx: Any) -> Any:
    """Counts padding as samples."""
    return torch.nn.functional.cross_entropy(model(values["w"], batch.x), batch.y)


def nan_loss(model: Any, values: Values, batch: Batch, ctx: Any) -> Any:
    """A weight becomes nan in the first step of all."""
    bias = values["w"].part("head.bias").weights
    return cross_entropy(model, values, batch, ctx) + torch.sqrt(bias.sum() * 0.0)


def origin_loss(model: Any, values: Values, batch: Batch, ctx: Any) -> Any:
    """FedAvg's at mu = 0, of which nothing is said."""
    w = values["w"].weights
    return cross_entropy(model, values, batch, ctx) + ctx.hp.mu * (w @ w)


class PullHyper(Hyperparameters):
    mu: float = hp(0.1, ge=0)


with_loss("closure", lambda received: lambda model, values, batch, ctx: pull(model, values, batch, ctx, received))
# No tensor is in these two, and yet no two clients share them.
with_loss("new_loss", lambda _: lambda model, values, batch, ctx: pull(model, values, batch, ctx, 0.0))
with_loss("new_partial", lambda _: functools.partial(pull, center=0.0))
with_loss("bound", lambda _: Holder().loss)
with_loss("branch", lambda _: branching_loss)
with_loss("reduction", lambda _: padded_loss)
with_loss("no_number", lambda _: nan_loss)
with_loss("degenerate", lambda _: origin_loss, PullHyper)


def scaled_loss(factor: float) -> Any:
    """A loss out of a factory."""

    def loss(model: Any, values: Values, batch: Batch, ctx: Any) -> Any:
        return factor * cross_entropy(model, values, batch, ctx)

    return loss


WARM, LATE = scaled_loss(1.0), scaled_loss(0.5)


@METHODS.register("sound_pair")
class Pair(Sound):
    """Nothing wrong: two fixed losses of the module."""

    def client_round(self, client: Client, down: State) -> Program:
        warm = yield Train({"w": down["model"]}, loss=WARM)
        late = yield Train({"w": warm["w"]}, loss=LATE)
        yield Upload({"model": late["w"]})


# -- the rest ---------------------------------------------------------------------------------------------------------


@METHODS.register("broken_hidden_nan")
class HiddenNan(Sound):
    """A gradient is nan, and the step says nothing."""

    def client_round(self, client: Client, down: State) -> Program:
        trained = yield Train({"w": down["model"]}, step=hiding_step)
        yield Upload({"model": trained["w"]})


def hiding_step(do: Any, values: Values, batch: Batch, ctx: Any) -> Values:
    gradients, _ = do.gradient(nan_loss, values, batch, ctx)
    return do.update(values, {name: gradient.nan_to_num(0.0) for name, gradient in gradients.items()})


class IllegalHyper(Hyperparameters):
    mu: float = hp(0.1, gt=0, search=Range(0, 1))


@METHODS.register("broken_range")
class IllegalRange(Sound):
    """Searches where it may not be."""

    Hyper = IllegalHyper


class OutsideHyper(Hyperparameters):
    mu: float = hp(2.0, ge=0, search=Range(0, 1))


@METHODS.register("broken_default_value")
class Outside(Sound):
    """Does not search where its default is."""

    Hyper = OutsideHyper


@METHODS.register("broken_favourite")
class Favourite(Sound):
    """Counts the client of the lowest number three times."""

    def aggregate(self, server: Server, messages: list[Message]) -> None:
        first = min(m.client for m in messages)
        weighed = [replace(m, weight=3 * m.weight if m.client == first else m.weight) for m in messages]
        server.state["model"] = mean(weighed, "model")


@METHODS.register("broken_counts")
class Counts(Sound):
    """Weighs clients by n_i + 1."""

    def client_round(self, client: Client, down: State) -> Program:
        trained = yield Train({"w": down["model"]}, loss=cross_entropy)
        yield Upload({"model": trained["w"]}, weight=client.n_train + 1.0)
