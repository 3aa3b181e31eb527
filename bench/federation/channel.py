"""The channel: what happens to a client's messages on their way to the server (docs/channel.md).

What the operations see of a model value is its update: its weights minus those of the value of the same name that the
client downloaded. The server adds what arrives to that value. Running statistics, other tensors and plain numbers
travel as they are.
"""

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bench.channel.operation import ChannelOperation, Update
from bench.engine.programs import Passage, Sent
from bench.errors import UserError
from bench.federation.privacy import Releases, noise_of
from bench.federation.sent_values import SentValues, origin
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

    Args:
        settings: settings of the cell.

    Attributes:
        releases: what was released with noise; None without noise.
    """

    def __init__(self, settings: Settings) -> None:
        self._operations = [(entry["name"], _operation(entry)) for entry in settings.channel]
        self._seed = settings.seed
        self._method = settings.method
        self._sent = SentValues()  # model values go through the operations
        self._moving = False  # whether running statistics were sent
        self._shared: dict[str, dict[str, Any]] = {}  # what servers tell all clients, by operation and value
        self._answers: dict[str, list[float]] = {}  # of this version
        self._clients = 1  # that were started last
        noise = noise_of(settings)
        adaptive = [operation["count_noise"] for operation in settings.channel if operation["name"] == "adaptive_clip"]
        self._equal = noise is not None and noise["on"] == "sum"
        self.releases = None if noise is None else Releases(noise, next(iter(adaptive), None))

    def passage(self, client: Client, down: Mapping[str, Any], version: int, clients: int) -> Passage:
        """The way of a client's messages of one round to the server.

        Args:
            client: the client, in whose state operations keep what they need.
            down: what it downloaded.
            version: number of the server version that it downloaded.
            clients: how many clients start with it.

        Returns:
            A function of a message's values and weight, which returns what arrives; with noise on the sum all weights
            are equal.
        """
        numbers = itertools.count()
        self._clients = clients

        def send(values: dict[str, Any], weight: float | None) -> Sent:
            message, arriving, sent = next(numbers), dict(values), 0
            for name, value in values.items():
                encodes = self._sent.add(name, value)
                self._moving |= any(isinstance(p, Params) and p.buffers.numel() > 0 for p in parts(value))
                if encodes:
                    arriving[name], size = self._encode(client, name, value, down.get(name), (version, message))
                    sent += size
                else:
                    sent += sum(p.weights.nbytes if isinstance(p, Params) else p.nbytes for p in parts(value))
            return Sent(arriving, 1.0 if self._equal else weight, encoded=sent)

        return send

    def _encode(self, client: Client, name: str, value: Params, base: Any, at: tuple[int, int]) -> tuple[Params, int]:
        """Send one model value; what arrives, and its bytes."""
        start = origin(base, value)
        if start is None:
            self._sent.note(
                f"channel: method {self._method!r} downloads no {name!r}, so the operations see its numbers and not "
                "their change"
            )
        plain = value.weights if start is None else value.weights - start
        update = replace(Update.of(plain), clients=self._clients)
        states = dict(client.state.get(STATE, {}))
        version, message = at
        for label, operation in self._operations:
            key = f"{label} {name}"
            rng = generator("channel", self._seed, version, client.id, message, name, label)
            shared = self._shared.get(key, {})
            update, state = operation.send(replace(update, shared=shared), states.get(key, {}), rng)
            if update.answer is not None:
                self._answers.setdefault(key, []).append(update.answer)
                update = replace(update, answer=None)
            if state or key in states:
                states[key] = state
        if states:
            client.state[STATE] = states
        if self.releases is not None:
            self.releases.add(client.id, (message, name))
        if update.values is plain and update.positions is None:
            return value, update.bytes
        decoded = update.decoded()
        return value.with_weights(decoded if start is None else start + decoded), update.bytes

    def close(self, version: int, rate: float) -> None:
        """End a version: what the server tells all clients of the next one, and what this one has released.

        Args:
            version: its number.
            rate: share of the clients that took part in it.
        """
        for label, operation in self._operations:
            for key in sorted(key for key in self._answers if key.partition(" ")[0] == label):
                rng = generator("channel", self._seed, version, key)
                self._shared[key] = operation.close(self._shared.get(key, {}), self._answers.pop(key), rng)
        if self.releases is not None:
            self.releases.close(self._clients, rate)

    @property
    def notices(self) -> list[str]:
        """Messages to the user about what happened so far, one line each."""
        return self._sent.notices

    @property
    def unprotected(self) -> list[str]:
        """All that travelled without going through the operations, in words."""
        names = [repr(name) for name, encoded in sorted(self._sent.models.items()) if not encoded]
        texts = [f"{', '.join(names)}, which clients send as they are"] if names else []
        return texts + (["running statistics of normalisation layers"] if self._moving else [])

    def state(self) -> dict[str, Any]:
        """All that a later `restore` needs beside the states of clients, in plain values."""
        released = {} if self.releases is None else self.releases.state()
        return {
            "sent": self._sent.models, "moving": self._moving, "shared": self._shared, "answers": self._answers,
            "released": released,
        }  # fmt: skip

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a `state`."""
        self._sent.models, self._moving = dict(state["sent"]), state["moving"]
        self._shared, self._answers = dict(state["shared"]), dict(state["answers"])
        if self.releases is not None:
            self.releases.restore(state["released"])

    def note_rest(self) -> None:
        """Tell the user how much of what was sent does not go through the operations."""
        self._sent.note_rest(f"channel: method {self._method!r}:", "travel as they are")

    def check(self) -> None:
        """Refuse a method none of whose messages so far had anything for the operations.

        Raises:
            UserError: there is such a method.
        """
        if sends := self._sent.without_models:
            names = ", ".join(name for name, _ in self._operations)
            raise UserError(
                f"channel: method {self._method!r} sends {sends}, so {names} would change nothing; take out `channel`, "
                "or take a method that sends models"
            )


def _operation(entry: Mapping[str, Any]) -> ChannelOperation:
    kind = CHANNELS.get(entry["name"])
    operation: ChannelOperation = kind(kind.Hyper(**{key: value for key, value in entry.items() if key != "name"}))
    return operation
