"""FedDrift: Jothimurugesan, Hsieh, Wang, Joshi and Gibbons 2023 (AISTATS), "Federated Learning under Distributed
Concept Drift".

There are as many models as there are concepts, as far as the clients' losses show. A client whose smallest loss rises
by more than delta from one round to the next has drifted: it begins a model of its own. The server merges models that
do nearly as well on each other's clients.
"""

import itertools

import torch

from bench.method import (
    METHODS, Client, Evaluate, Hyperparameters, Message, Method, Program, Range, Server, State, Train, Upload,
    cross_entropy, hp, mean,
)  # fmt: skip


class Hyper(Hyperparameters):
    """`delta`: by how much a loss must rise to be a drift, and below which distance models are merged."""

    delta: float = hp(0.2, gt=0, search=Range(0.02, 2, log=True))


@METHODS.register("feddrift")
class FedDrift(Method):
    """IFCA whose models come and go: begun by clients that have drifted, merged by the server as they become alike."""

    Hyper = Hyper
    trains = "pm"

    def init(self, server: Server) -> None:
        server.state |= {"model0": server.initial_model(), "begun": 1}

    def init_client(self, server: Server, client: Client) -> None:
        client.state["initial"] = server.initial_model()

    def broadcast(self, server: Server, client: Client) -> State:
        return {name: server.state[name] for name in names(server.state)}

    def client_round(self, client: Client, down: State) -> Program:
        losses = yield from self.losses(down)
        name, smallest = names(down)[int(losses.argmin())], float(losses.min())
        drifted = smallest > client.state.get("loss", smallest) + self.hp.delta
        client.state["loss"] = smallest
        trained = yield Train({"w": client.state["initial"] if drifted else down[name]}, loss=cross_entropy)
        yield Upload({"model": trained["w"], "number": -1 if drifted else int(name[5:]), "losses": losses})
        return trained["w"]

    def losses(self, down: State) -> Program:
        """The losses of all models on the client's training data, `[models]`."""
        losses, _ = yield Evaluate([down[name] for name in names(down)])
        return losses

    def aggregate(self, server: Server, messages: list[Message]) -> None:
        models, groups = names(server.state), dict[str, list[Message]]()
        for m in messages:
            if m["number"] >= 0:
                groups.setdefault(f"model{m['number']}", []).append(m)
            else:
                server.state[f"model{server.state['begun']}"] = m["model"]
                server.state["begun"] += 1
        for name, group in groups.items():
            server.state[name] = mean(group, "model")
        alike = [name for name in models if name in groups]
        on = torch.stack([mean(groups[name], "losses") for name in alike]) if alike else torch.zeros(0, len(models))
        on = on[:, [models.index(name) for name in alike]]  # row: whose clients, column: whose model
        own = on.diagonal()
        worse = on - own  # how much worse a model is on others' clients than on its own
        distances = torch.maximum(worse, worse.T).clamp(min=0)
        sizes = [sum(m.weight for m in groups[name]) for name in alike]
        for merged in clusters(distances, self.hp.delta):
            whole = [Message(i, {"w": server.state[alike[i]]}, sizes[i], server.round) for i in merged]
            kept = alike[merged[0]]
            for i in merged[1:]:
                del server.state[alike[i]]
            server.state[kept] = mean(whole, "w") if len(whole) > 1 else server.state[kept]

    def personal(self, server: Server, client: Client, down: State) -> Program:
        losses = yield from self.losses(down)
        return down[names(down)[int(losses.argmin())]]


def names(state: State) -> list[str]:
    """The models in the order in which they were begun."""
    return sorted((name for name in state if name.startswith("model")), key=lambda name: int(name[5:]))


def clusters(distances: torch.Tensor, delta: float) -> list[list[int]]:
    """Merge the two closest clusters, by the largest distance of their members, while that is below delta."""
    groups = [[i] for i in range(len(distances))]
    while len(groups) > 1:
        pairs = itertools.combinations(range(len(groups)), 2)
        nearest, k, j = min((float(distances[groups[k]][:, groups[j]].max()), k, j) for k, j in pairs)
        if nearest >= delta:
            break
        groups[k] += groups.pop(j)
    return [sorted(group) for group in groups]
