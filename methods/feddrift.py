"""FedDrift: Jothimurugesan, Hsieh, Wang, Joshi and Gibbons 2023 (AISTATS), "Federated Learning under Distributed
Concept Drift", in the reading of the authors' code.

There is one model per concept, as far as the clients' accuracies show. A client whose best accuracy drops has drifted:
it begins a new model as a copy of its best one. The server merges models that do as well on each other's clients.
"""

import numpy as np

from bench.method import (
    METHODS, Client, Evaluate, Hyperparameters, Message, Method, Program, Range, Server, State, Train, Upload,
    cross_entropy, hp, mean,
)  # fmt: skip


class Hyper(Hyperparameters):
    """Hyperparameters of FedDrift; accuracies are shares from 0 to 1.

    Attributes:
        delta: a client has drifted if its best accuracy drops by more than this.
        delta_merge: models are merged if their distance is at most this (delta' in the paper).
        isolation: number of its client's rounds in which a new model is that client's alone (W in the paper).
        models: largest number of models.
    """

    delta: float = hp(0.1, ge=0, search=Range(0.02, 0.3, log=True))
    delta_merge: float = hp(0.1, ge=0, search=Range(0.02, 0.3, log=True))
    isolation: int = hp(1, ge=1, static=True)
    models: int = hp(4, ge=1, static=True)

    def degenerate(self) -> list[str]:
        return ["models = 1: FedDrift is FedAvg"] if self.models == 1 else []


@METHODS.register("feddrift")
class FedDrift(Method):
    """IFCA whose models come and go: begun by clients that have drifted, merged by the server as they become alike."""

    Hyper = Hyper
    trains = "pm"

    def init(self, server: Server) -> None:
        server.state |= {"models": {"model0": server.initial_model()}, "begun": 1, "trained": {}, "last": {}}
        server.state |= {"uses": {}, "accuracies": {}, "isolated": {}}  # by client

    def broadcast(self, server: Server, client: Client) -> State:
        return {name: server.state["models"][name] for name in offered(server.state, client.id)}

    def client_round(self, client: Client, down: State) -> Program:
        models = [down[name] for name in sorted(down, key=number)]
        # The last model tells a change of the client's data from a change of the others' models.
        _, accuracies = yield Evaluate(models + client.state.get("last", []))
        best = models[int(accuracies[: len(models)].argmax())]
        client.state["last"] = [best]
        trained = yield Train({"w": best}, loss=cross_entropy)
        yield Upload({"model": trained["w"], "accuracies": accuracies})
        return trained["w"]

    def aggregate(self, server: Server, messages: list[Message]) -> None:
        state, drifted = server.state, []
        state |= {key: dict(value) for key, value in state.items() if isinstance(value, dict)}
        for m in messages:
            before, row = state["accuracies"].get(m.client), m["accuracies"].tolist()
            if before and max(before.values()) - max(row) > self.hp.delta and m.client not in state["isolated"]:
                drifted.append(m)
            now = dict(zip(offered(state, m.client), row, strict=False))
            state["accuracies"][m.client], state["uses"][m.client] = now, max(now, key=now.__getitem__)
        isolated = {i: left - any(m.client == i for m in messages) for i, left in state["isolated"].items()}
        state["isolated"] = {i: left for i, left in isolated.items() if left}
        for m in drifted:
            self.begin(server, m)
        for name in dict.fromkeys(state["uses"][m.client] for m in messages):
            group = [m for m in messages if state["uses"][m.client] == name]
            state["models"][name] = mean(group, "model")
            state["trained"][name] = state["trained"].get(name, 0) + len(group)
            state["last"][name] = server.round
        for merged in alike(state, server.sizes, self.hp.delta_merge):
            merge(state, merged)

    def begin(self, server: Server, message: Message) -> None:
        """Begin a model from a drifted client's message; of too many, the one that was not used for longest goes."""
        state = server.state
        if len(state["models"]) == self.hp.models:
            used = {name for i, name in state["uses"].items() if server.sizes[i]}
            idle = [name for name in state["models"] if name not in used]
            if not idle:
                return  # the client trains its best model instead
            del state["models"][min(idle, key=lambda name: (state["last"][name], number(name)))]
        name = f"model{state['begun']}"
        state["models"][name], state["uses"][message.client] = message["model"], name
        state["begun"] += 1
        if self.hp.isolation > 1:
            state["isolated"][message.client] = self.hp.isolation - 1

    def personal(self, server: Server, client: Client, down: State) -> Program:
        models = [down[name] for name in sorted(down, key=number)]
        _, accuracies = yield Evaluate(models)
        return models[int(accuracies.argmax())]


def number(name: str) -> int:
    """The place of a model in the order in which models were begun."""
    return int(name.removeprefix("model"))


def offered(state: State, client: int) -> list[str]:
    """Names of the models that a client may choose from: its own in isolation, else all that are nobody's own."""
    if client in state["isolated"]:
        return [state["uses"][client]]
    own = {state["uses"][i] for i in state["isolated"]}
    return sorted((name for name in state["models"] if name not in own), key=number)


def alike(state: State, sizes: dict[int, int], threshold: float) -> list[list[str]]:
    """Groups of models to merge: complete linkage of max(a_ii - a_ij, a_jj - a_ji, 0), cut at the threshold.

    a_ij is the accuracy of model i on the clients that use model j, as they last said; models without one stay apart.
    """
    from scipy.cluster.hierarchy import fcluster, linkage  # imported here, as cells of other methods run without scipy
    from scipy.spatial.distance import squareform

    models = sorted(state["models"], key=number)
    if len(models) == 1:
        return []
    a = np.full((len(models), len(models)), np.nan)
    for i, model in enumerate(models):
        for j, other in enumerate(models):
            users = [c for c, name in state["uses"].items() if name == other and model in state["accuracies"][c]]
            if any(sizes[c] for c in users):
                accuracies = [state["accuracies"][c][model] for c in users]
                a[i, j] = np.average(accuracies, weights=[sizes[c] for c in users])
    worse = np.diag(a)[:, None] - a
    distances = np.nan_to_num(np.maximum(worse, worse.T).clip(min=0), nan=2.0)
    np.fill_diagonal(distances, 0)
    labels = fcluster(linkage(squareform(distances), "complete"), threshold, "distance")
    groups = [[name for name, of in zip(models, labels, strict=True) if of == label] for label in set(labels)]
    return [group for group in groups if len(group) > 1]


def merge(state: State, group: list[str]) -> None:
    """Put the mean of models, weighted by how many client rounds have trained each, in the place of the first."""
    first, weights = group[0], [state["trained"][name] for name in group]
    messages = [Message(0, {"w": state["models"].pop(name)}, n, 0) for name, n in zip(group, weights, strict=True)]
    state["models"][first], state["trained"][first] = mean(messages, "w"), sum(weights)
    state["uses"] = {i: first if name in group else name for i, name in state["uses"].items()}
