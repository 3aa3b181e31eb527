"""The channel: what happens to a client's messages on their way to the server (docs/channel.md).

What the operations see of a model value is its update: its weights minus those of the value of the same name that the
client downloaded. The server adds what arrives to that value. Running statistics, other tensors and plain numbers
travel as they are.
"""

import itertools
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from bench.channel.operation import ChannelOperation, Update
from bench.engine.programs import Passage
from bench.errors import UserError
from bench.method import Client
from bench.nested import parts
from bench.params import Params
from bench.plugin import CHANNELS
from bench.rng import generator
from bench.settings import Settings

STATE = "bench.channel"
"""The entry of a client's state in which operations keep what is theirs, by operation and value."""


class Channel:
    """The operations that a cell's uploads go through, in their order.

    Attributes:
        notices: messages to the user about what happened so far, one line each.
    """

    def __init__(self, settings: Settings) -> None:
        self.notices: list[str] = []
        self._operations = [(entry["name"], _operation(entry)) for entry in settings.channel]
        self._seed = settings.seed
        self._method = settings.method
        self._sent: dict[str, bool] = {}  # by name of a value, whether it went through the operations

    def passage(self, client: Client, down: Mapping[str, Any], version: int) -> Passage:
        """The way of a client's messages of one round to the server.

        Args:
            client: the client, in whose state operations keep what they need.
            down: what it downloaded.
            version: number of the server version that it downloaded.

        Returns:
            A function of a message's values, which returns the values that arrive, and the bytes that were sent but
            for running statistics.
        """
        numbers = itertools.count()

        def send(values: dict[str, Any]) -> tuple[dict[str, Any], int]:
            message, arriving, sent = next(numbers), dict(values), 0
            for name, value in values.items():
                encodes = isinstance(value, Params) and value.spec.d > 0
                self._sent[name] = self._sent.get(name, False) or encodes
                if encodes:
                    arriving[name], size = self._encode(client, name, value, down.get(name), (version, message))
                    sent += size
                else:
                    sent += sum(p.weights.nbytes if isinstance(p, Params) else p.nbytes for p in parts(value))
            return arriving, sent

        return send

    def _encode(self, client: Client, name: str, value: Params, base: Any, at: tuple[int, int]) -> tuple[Params, int]:
        """Send one model value; what arrives, and its bytes."""
        origin = _origin(base, value)
        if origin is None:
            self._note(name)
        plain = update = Update.of(value.weights if origin is None else value.weights - origin)
        states = dict(client.state.get(STATE, {}))
        version, message = at
        for label, operation in self._operations:
            key = f"{label} {name}"
            rng = generator("channel", self._seed, version, client.id, message, name, label)
            update, state = operation.send(update, states.get(key, {}), rng)
            if state or key in states:
                states[key] = state
        if states:
            client.state[STATE] = states
        if update is plain:
            return value, update.bytes
        decoded = update.decoded()
        return value.with_weights(decoded if origin is None else origin + decoded), update.bytes

    def _note(self, name: str) -> None:
        text = (
            f"channel: method {self._method!r} downloads no {name!r}, so the operations see its numbers and not their "
            "change"
        )
        if text not in self.notices:
            self.notices.append(text)

    def check(self) -> None:
        """Refuse a method none of whose messages so far had anything for the operations.

        Raises:
            UserError: there is such a method.
        """
        if any(self._sent.values()):
            return
        names = ", ".join(name for name, _ in self._operations)
        sends = f"no model value, only {', '.join(map(repr, self._sent))}" if self._sent else "nothing"
        raise UserError(
            f"channel: method {self._method!r} sends {sends}, so {names} would change nothing; take out `channel`, or "
            "take a method that sends models"
        )


def _operation(entry: Mapping[str, Any]) -> ChannelOperation:
    kind = CHANNELS.get(entry["name"])
    operation: ChannelOperation = kind(kind.Hyper(**{key: value for key, value in entry.items() if key != "name"}))
    return operation


def _origin(base: Any, value: Params) -> Tensor | None:
    """The downloaded weights `[d]` of the tensors of a value; None if they were not downloaded under its name."""
    if not isinstance(base, Params):
        return None
    if base.spec == value.spec:
        return base.weights
    if base.spec.arch == value.spec.arch and set(value.spec.params) <= set(base.spec.params):
        return base.part(*(entry.name for entry in value.spec.params)).weights
    return None
