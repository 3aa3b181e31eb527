"""The channel: what happens to a client's messages on their way to the server (docs/channel.md).

What the operations see of a model value is its update: its weights minus those of the value of the same name that the
client downloaded. The server adds what arrives to that value. Running statistics, other tensors and plain numbers
travel as they are.
"""

import itertools
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from bench.channel.operation import ChannelOperation, Update
from bench.engine.device_data import SERVER
from bench.engine.programs import Passage, Sent
from bench.errors import UserError
from bench.federation.privacy import Releases
from bench.method import Client, Hyperparameters, Message, ServerRule, mean
from bench.params import Params, parts
from bench.plugin import CHANNELS
from bench.rng import generator
from bench.settings import OperationPart, Settings, noise_of

STATE = "bench.channel"
"""The entry of a client's state in which operations keep what is theirs, by operation and value."""
_WORTH_A_NOTICE = 0.01
"""Share of the numbers sent: what channel and attack leave alone is mostly less, such as counts of classes."""


class Channel:
    """The operations that a cell's uploads go through, in their order.

    Args:
        settings: settings of the cell; without operations, what clients send is recorded and not changed.

    Attributes:
        sent: record of what clients sent, of which model values go through the operations.
        releases: what was released with noise; None without noise.
        sums: whether the noise is on the sum of a round's updates; all clients count alike then (`NoisyMean`).
    """

    def __init__(self, settings: Settings) -> None:
        self._operations = [(part.name, _operation(part)) for part in settings.channel]
        self._seed = settings.seed
        self._method = settings.method
        names = ", ".join(name for name, _ in self._operations)
        self.sent = SentValues(
            f"channel: method {self._method!r}" if names else "",
            "travel as they are",
            f"so {names} would change nothing; take out `channel`, or take a method that sends models",
        )
        self._moving = False  # whether running statistics were sent
        self._shared: dict[str, dict[str, Any]] = {}  # what servers tell all clients, by operation and value
        self._answers: dict[str, list[float]] = {}  # of this version
        self._version, self._clients = 0, 1
        self._started = 0  # clients, in this version
        noise = noise_of(settings.channel)
        adaptive = [part["count_noise"] for part in settings.channel if part.name == "adaptive_clip"]
        self.sums = noise is not None and noise["on"] == "sum"
        self.releases = None if noise is None else Releases(noise, next(iter(adaptive), None))

    def begin(self, version: int, clients: int) -> None:
        """Begin a version, of which a round has so many clients on average."""
        self._version, self._clients, self._started = version, clients, 0

    def passage(self, client: Client, down: Mapping[str, Any], version: int, clients: int) -> Passage:
        """The way of a client's messages of one round to the server.

        Args:
            client: the client, in whose state operations keep what they need.
            down, version: what it downloaded.
            clients: how many clients start with it.

        Returns:
            A function of a message's values and weight, which returns what arrives; with noise on the sum all weights
            are equal.
        """
        numbers = itertools.count()
        self._started = clients

        def send(values: dict[str, Any], weight: float | None) -> Sent:
            message, arriving, sent = next(numbers), dict(values), 0
            weight = 1.0 if self.sums else weight
            self.sent.add_message(message, values, weight)
            for name, value in values.items():
                encodes = self.sent.add(name, value) and self._operations
                self._moving |= any(isinstance(p, Params) and p.buffers.numel() > 0 for p in parts(value))
                if encodes:
                    arriving[name], size = self._encode(client, name, value, down.get(name), (version, message))
                    sent += size
                else:
                    sent += sum(p.weights.nbytes if isinstance(p, Params) else p.nbytes for p in parts(value))
            return Sent(arriving, weight, encoded=sent if self._operations else None)

        return send

    def _encode(self, client: Client, name: str, value: Params, base: Any, at: tuple[int, int]) -> tuple[Params, int]:
        """Send one model value; what arrives, and its bytes."""
        start = origin(base, value)
        if start is None:
            self.sent.note(
                f"channel: method {self._method!r} downloads no {name!r}, so the operations see its numbers and not "
                "their change"
            )
        plain = value.weights if start is None else value.weights - start
        update = replace(Update.of(plain), clients=self._started)
        states = dict(client.state.get(STATE, {}))
        version, message = at
        update = self._operated(update, name, states, version, client.id, message)
        if states:
            client.state[STATE] = states
        if self.releases is not None and not self.sums:
            self.releases.add(client.id)
        if update.values is plain and update.positions is None:
            return value, update.bytes
        decoded = update.decoded()
        return value.with_weights(decoded if start is None else start + decoded), update.bytes

    def _operated(self, update: Update, name: str, states: dict[str, Any], *at: int) -> Update:
        """An update of a value after all operations, which draw at an address and renew a client's states.

        Answers of nobody (`SERVER`) do not count, but move what follows from answers in a round without clients, too.
        """
        for label, operation in self._operations:
            key = f"{label} {name}"
            rng = generator("channel", self._seed, *at, name, label)
            shared = self._shared.get(key, {})
            update, state = operation.send(replace(update, shared=shared), states.get(key, {}), rng)
            if update.answer is not None:
                self._answers.setdefault(key, []).extend([update.answer] if SERVER not in at else [])
                update = replace(update, answer=None)
            if state or key in states:
                states[key] = state
        return update

    def noisy_mean(self, old: Params, messages: Sequence[Message], name: str) -> Params:
        """The new value of a name: the old one plus the noisy sum of its updates over the number of clients that a
        round has on average, so that no client changes the divisor. Noise that clients were to add who sent nothing is
        added here: a round without clients has all of it.

        Raises:
            UserError: a client sends the value twice in a round, or has downloaded another one than its update is added
                to, so that no norm bounds what a client moves.
        """
        sent = [message for message in messages if name in message.values]
        problem = "sends it twice in a round" if len({m.client for m in sent}) < len(sent) else ""
        for message in sent:
            base, start = origin(message.base.get(name), message[name]), origin(old, message[name])
            if base is None or start is None or not (base is start or torch.equal(base, start)):
                problem = "downloads another value than the one that its update is added to"
        if problem:
            raise UserError(
                f"channel: noise on the sum of a round's updates: a client of method {self._method!r} {problem}, under "
                f"the name {name!r}: no norm bounds what it moves; take `on: each` of gaussian"
            )
        assert self.releases is not None, "`NoisyMean` is for channels with noise"
        self.releases.add_sum()
        whole = mean(sent, name) if sent else old
        missing = 1 - len(sent) / self._started if self._started else 1.0
        if not missing and len(sent) == self._clients:
            return whole
        start = origin(old, whole)
        assert start is not None, "updates are of this value"
        total = (whole.weights - start) * len(sent)
        if missing:
            # All the noise on the sum is on the one update of nobody, which is 0.
            nobody = self._operated(Update.of(torch.zeros_like(start)), name, {}, self._version, SERVER)
            total += math.sqrt(missing) * nobody.decoded()
        return whole.with_weights(start + total / self._clients)

    def close(self, rate: float) -> None:
        """End a version: what the server tells all clients of the next one, and what this one has released.

        `rate` is the share of the clients that a round has on average.
        """
        for label, operation in self._operations:
            for key in sorted(key for key in self._answers if key.partition(" ")[0] == label):
                rng = generator("channel", self._seed, self._version, key)
                answers = self._answers.pop(key)
                clients = self._clients if self.sums else len(answers)
                self._shared[key] = operation.close(self._shared.get(key, {}), answers, rng, clients)
        if self.releases is not None:
            self.releases.close(self._clients, rate)

    @property
    def unprotected(self) -> list[str]:
        """All that travelled without going through the operations, in words."""
        return self.sent.beside_models + (["running statistics of normalisation layers"] if self._moving else [])

    def state(self) -> dict[str, Any]:
        """All that a later `restore` needs beside the states of clients, in plain values."""
        plain = {**self.sent.state(), "moving": self._moving, "shared": self._shared, "answers": self._answers}
        return plain | {"released": {} if self.releases is None else self.releases.state()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a `state`."""
        self.sent.restore(state)
        self._moving = state["moving"]
        self._shared, self._answers = dict(state["shared"]), dict(state["answers"])
        if self.releases is not None:
            self.releases.restore(state["released"])


class NoisyMean(ServerRule):
    """The mean of a round's clipped updates with noise on their sum; other values have the mean of the uploads."""

    def __init__(self, channel: Channel) -> None:
        super().__init__(Hyperparameters())
        self._channel = channel

    def combine(self, old: Any, messages: Sequence[Message], name: str) -> Any:
        if isinstance(old, Params) and old.spec.d > 0:
            return self._channel.noisy_mean(old, messages, name)
        return mean(messages, name) if messages else old


def _operation(part: OperationPart) -> ChannelOperation:
    kind = CHANNELS.get(part.name)
    operation: ChannelOperation = kind(kind.Hyper(**part.options))
    return operation


class SentValues:
    """A record of what was sent so far, for messages to the user.

    Args:
        source: the first words of messages: what acts on model values, and the method; empty if nothing does.
        rest: what becomes of other numbers, after "and".
        refused: why a method without model values is refused, and what to do instead.

    Attributes:
        models: by name of a value, whether it was a model value.
        notices: messages about what happened, one line each.
    """

    def __init__(self, source: str = "", rest: str = "", refused: str = "") -> None:
        self._source, self._rest, self._refused = source, rest, refused
        self.models: dict[str, bool] = {}
        self.notices: list[str] = []
        self._weights: set[str] = set()  # what clients sent as weights, in words
        self._names: dict[int, list[list[str]]] = {}  # by number of a message, the groups of names that it had
        self._numbers = Counter[bool]()  # how many were sent in model values, and how many beside them
        self._counted = False

    def add(self, name: str, value: Any) -> bool:
        """Record a value; returns whether it is a model value, which has weights."""
        is_model = isinstance(value, Params) and value.spec.d > 0
        self.models[name] = self.models.get(name, False) or is_model
        self._numbers[is_model] += sum(p.spec.d if isinstance(p, Params) else p.numel() for p in parts(value))
        return is_model

    def add_message(self, number: int, names: Collection[str], weight: float | None) -> None:
        """Record what a client shows by sending a message: its weight (None: that is its number of samples), and for
        which of several names it has something."""
        if weight is None:
            self._weights.add("numbers of training samples, the weights of the mean")
        elif weight != 1:
            self._weights.add("weights that clients compute for their uploads")
        groups = self._names.setdefault(number, [])
        if sorted(names) not in groups:
            groups.append(sorted(names))

    @property
    def beside_models(self) -> list[str]:
        """All that clients send beside the numbers of model values, in words."""
        names = [repr(name) for name, is_model in sorted(self.models.items()) if not is_model]
        some = [set().union(*groups) - set(groups[0]).intersection(*groups) for groups in self._names.values()]
        chosen = set(map(repr, set().union(*some)))
        return [
            *([f"{', '.join(names)}, which clients send as they are"] if names else []),
            *([f"which of {', '.join(sorted(chosen))} a client sends"] if chosen else []),
            *sorted(self._weights),
        ]

    def state(self) -> dict[str, Any]:
        """The record in plain values."""
        return {"sent": self.models, "weights": sorted(self._weights), "names": self._names}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state`."""
        self.models = dict(state["sent"])
        self._weights, self._names = set(state["weights"]), dict(state["names"])

    def check(self) -> None:
        """Tell the user, once and after the first messages, how much of what was sent is beside model values.

        Raises:
            UserError: nothing that was sent is a model value.
        """
        if not self._source:
            return
        if not any(self.models.values()):
            sends = f"no model value, only {', '.join(map(repr, self.models))}" if self.models else "nothing"
            raise UserError(f"{self._source} sends {sends}, {self._refused}")
        share = self._numbers[False] / max(1, self._numbers.total())
        if share >= _WORTH_A_NOTICE and not self._counted:
            names = ", ".join(repr(name) for name, is_model in self.models.items() if not is_model)
            numbers = f"{share:.0%} of the numbers that clients send are no model values ({names})"
            self.note(f"{self._source}: {numbers}, and {self._rest}")
        self._counted = self._counted or self._numbers.total() > 0

    def note(self, text: str) -> None:
        """Tell the user something once."""
        if text not in self.notices:
            self.notices.append(text)


def origin(base: Any, value: Params) -> Tensor | None:
    """The downloaded weights `[d]` of the tensors of a value; None if they were not downloaded under its name."""
    if not isinstance(base, Params):
        return None
    if base.spec == value.spec:
        return base.weights
    if base.spec.arch == value.spec.arch and set(value.spec.params) <= set(base.spec.params):
        return base.part(*(entry.name for entry in value.spec.params)).weights
    return None
