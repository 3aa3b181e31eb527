"""Malicious clients of a cell: who they are, what their data become, and what they send (docs/attacks.md)."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from bench.attacks.attack import Attack, checked
from bench.data import Dataset, Partition
from bench.engine.programs import Reply, Sent
from bench.errors import UserError
from bench.federation.channel import SentValues, origin
from bench.federation.setup import divide_clients, make_method
from bench.federation.simulated_time import ComputedRound
from bench.method import Everyone, Message, Method
from bench.params import Params, Spec
from bench.plugin import ATTACKS
from bench.rng import generator
from bench.settings import POISSON, Settings, noise_of

_BY_DATA = "take an attack by data: label_flip or backdoor"


def make_attack(settings: Settings) -> Attack | None:
    """The cell's attack, if it has one."""
    if settings.attack is None:
        return None
    kind = ATTACKS.get(settings.attack.name)
    attack: Attack = kind(kind.Hyper(**settings.attack.options))
    return attack


def malicious_clients(settings: Settings, partition: Partition) -> list[int] | None:
    """The malicious ones of the clients that train, sorted; None if the cell has no attack.

    They are drawn by the seed, whatever the method and the attack.

    Raises:
        UserError: the share of the clients rounds to none, or to all of them.
    """
    if settings.attack is None:
        return None
    trained = [i for i, indices in enumerate(partition.train) if len(indices)]
    ids, _ = divide_clients(trained, settings, partition.new)
    share = settings.attack["share"]
    count = round(share * len(ids))
    if share and not 1 <= count < len(ids):
        raise UserError(
            f"attack: share = {share:g} of {len(ids)} clients that train is {count}; at least one should be malicious "
            "and one benign"
        )
    return sorted(int(i) for i in generator("attack", settings.seed).choice(ids, count, replace=False))


def tolerance_note(settings: Settings, clients: Sequence[int], malicious: int) -> str:
    """Say what the cell's server rule tolerates in a round of the smallest size, and whether that is too little.

    Args:
        settings: the cell's, with a server rule.
        clients: for each stage of the data, how many clients train.
        malicious: how many of them are malicious.

    Returns:
        A sentence; empty if the rule promises no number.
    """
    method, name = make_method(settings), settings.server and settings.server.name
    fewest = min(clients) if method.everyone else settings.selected(min(clients))
    if not isinstance(method.trigger, Everyone) or settings.clock.dropout or settings.selection == POISSON:
        fewest = 1  # any number of messages may arrive
    if method.rule.needs is None:
        return ""
    (factor, more), expected, among = method.rule.needs, method.rule.expects(fewest), min(malicious, fewest)
    text = f"server {name} tolerates f = {expected} malicious clients in the smallest round, of n = {fewest}"
    if (needed := factor * expected + more) > fewest:
        text = (
            f"server {name} guarantees nothing in the smallest round: it expects f = {expected} malicious clients of "
            f"n = {fewest}, and needs n >= {factor}f + {more} = {needed}"
        )
    attack = make_attack(settings)
    if attack is not None and (attack.poisons or attack.forges) and among > expected:
        text += f"; attack {settings.attack and settings.attack['name']} may have {among} malicious clients there"
    return text


def poison(settings: Settings, dataset: Dataset, partition: Partition) -> Dataset:
    """The samples after the cell's attack by data, if it has one: training samples of malicious clients are others.

    Raises:
        UserError: the attack does not fit the data, or returns invalid data.
    """
    attack, clients = make_attack(settings), malicious_clients(settings, partition)
    if attack is None or clients is None:
        return dataset
    attack.check(dataset)
    if not attack.poisons:
        return dataset
    name = str(settings.attack and settings.attack.name)
    x, y = dataset.x.copy(), dataset.y.copy()
    for client in clients:
        at = partition.train[client]
        poisoned = attack.poison(x[at], y[at], dataset, generator("attack", settings.seed, "data", client))
        x[at], y[at] = checked(name, x[at], y[at], poisoned, dataset.num_classes)
    return replace(dataset, x=x, y=y)


class Forger:
    """Puts the updates of malicious clients in the place of their honest ones.

    Attributes:
        sent: record of what clients sent, of which the attack is on model values.
    """

    def __init__(self, settings: Settings, attack: Attack, malicious: list[int], method: Method) -> None:
        """Refuse what the attack does not go with, by a `UserError`: a method that sends no messages; a server that
        waits for no others, where the attack needs their updates; and noise on a sum, which lies would leave out."""
        self._attack = attack
        self._malicious = set(malicious)
        self._seed = settings.seed
        self._method = settings.method
        self._name = str(settings.attack and settings.attack.name)
        self.sent = SentValues(
            f"attack {self._name!r}: method {self._method!r}",
            "malicious clients send them honestly",
            f"which it would leave as it is; {_BY_DATA}",
        )
        if method.bound:
            raise UserError(f"attack {self._name!r}: the method {self._method!r} sends no messages; {_BY_DATA}")
        if attack.colludes and not isinstance(method.trigger, Everyone):
            raise UserError(
                f"attack {self._name!r} needs the updates of a round's clients, and the server of {settings.name!r} "
                "takes them as they come; take sign_flip, scale, noise or an attack by data"
            )
        noise = noise_of(settings.channel)
        if noise is not None and noise["on"] == "sum":
            raise UserError(
                f"attack {self._name!r}: all clients of a round add a part of the noise on the sum of its updates, and "
                f"lies come without theirs, so that epsilon would not hold; take `on: each` of gaussian, or {_BY_DATA}"
            )

    def forge_uploads(self, computed: Sequence[ComputedRound], version: int) -> None:
        """Put lies in the place of uploads: of the first one of every client, of the second ones, and so on."""
        downs, events = _downs(computed), {round_.client.id: round_.program.events for round_ in computed}
        places = {i: [k for k, e in enumerate(of) if isinstance(e, Sent) and not e.waits] for i, of in events.items()}
        for number in range(max(map(len, places.values()), default=0)):
            at = {i: of[number] for i, of in places.items() if number < len(of)}
            uploads = {i: event for i, k in at.items() if isinstance(event := events[i][k], Sent)}
            values = {i: event.values for i, event in uploads.items()}
            for i, lies in self._forged(values, downs, version, f"upload {number}").items():
                events[i][at[i]] = uploads[i]._replace(values=lies)

    def replier(self, computed: Sequence[ComputedRound], version: int, reply: Reply) -> Reply:
        """The server's answer to messages that wait for one, with lies in the place of those of malicious clients."""
        downs, numbers = _downs(computed), itertools.count()

        def reply_to_lies(messages: list[Message]) -> Mapping[int, Any]:
            values = {message.client: message.values for message in messages}
            forged = self._forged(values, downs, version, f"exchange {next(numbers)}")
            return reply([replace(m, values=forged.get(m.client, m.values)) for m in messages])

        return reply_to_lies

    def _forged(
        self, values: Mapping[int, dict[str, Any]], downs: Mapping[int, Mapping[str, Any]], version: int, message: str
    ) -> dict[int, dict[str, Any]]:
        """All values of the malicious clients' messages, by client, with lies in the place of model values."""
        forged = {i: dict(v) for i, v in values.items() if i in self._malicious}
        groups: dict[tuple[str, Spec], dict[int, Params]] = {}
        for i, of_client in sorted(values.items()):
            for name, value in of_client.items():
                if self.sent.add(name, value):
                    groups.setdefault((name, value.spec), {})[i] = value
        for (name, _), honest in groups.items():
            if not honest.keys().isdisjoint(forged):
                for i, lie in self._lies(name, honest, downs, (version, message)).items():
                    forged[i][name] = lie
        return forged

    def _lies(
        self, name: str, honest: Mapping[int, Params], downs: Mapping[int, Mapping[str, Any]], at: tuple[int, str]
    ) -> dict[int, Params]:
        bases = {i: origin(downs[i].get(name), value) for i, value in honest.items()}
        if None in bases.values():
            self.sent.note(
                f"attack: method {self._method!r} downloads no {name!r}, so the attack is on its numbers and not on "
                "their change"
            )
        starts = {i: torch.zeros_like(honest[i].weights) if base is None else base for i, base in bases.items()}
        updates = {i: value.weights - starts[i] for i, value in honest.items()}
        malicious = [i for i in updates if i in self._malicious]
        planned = torch.stack([updates[i] for i in malicious])
        benign = [update for i, update in updates.items() if i not in self._malicious]
        rng = generator("attack", self._seed, *at, name, malicious[0])
        lies = self._attack.forge(planned, torch.stack(benign) if benign else planned[:0], rng)
        if lies is planned:
            return {}
        return {i: honest[i].with_weights(starts[i] + lie) for i, lie in zip(malicious, lies, strict=True)}


def _downs(computed: Sequence[ComputedRound]) -> dict[int, dict[str, Any]]:
    return {round_.client.id: round_.down for round_ in computed}
