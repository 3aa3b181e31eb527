"""A client's round between its download and the arrival of its last message."""

from dataclasses import dataclass, field
from typing import Any

from bench.method import Client, Message
from bench.params import Params


@dataclass
class InFlight:
    """A client's round whose work has been computed, but whose messages have not all arrived yet.

    Attributes:
        client: the client with the state after its round, which the server's side sees only from the time `end` on.
        end: simulated time at which the client has finished its local work and its last message has arrived.
        messages: (time of arrival, message) of the messages that are still under way, in order.
        local: the client's model right after local training, if its program returned one.
    """

    client: Client
    end: float
    messages: list[tuple[float, Message]] = field(default_factory=list)
    local: Params | None = None

    @property
    def next(self) -> tuple[float, int]:
        """Return the time of the round's next event, with the client's id to break ties."""
        return (self.messages[0][0] if self.messages else self.end), self.client.id

    def ended(self, now: float) -> bool:
        """Whether all events of the round are over."""
        return not self.messages and self.end <= now

    def plain(self) -> dict[str, Any]:
        """Return the plain values that a checkpoint stores of the round."""
        return {
            "client": self.client.id,
            "state": self.client.state,
            "end": self.end,
            "messages": [[time, dict(vars(message))] for time, message in self.messages],
            "local": self.local,
        }

    @classmethod
    def of(cls, plain: dict[str, Any], client: Client) -> "InFlight":
        """Restore a round from the result of `plain`; `client` is the client that it names, without state."""
        client.state = plain["state"]
        messages = [(time, Message(**message)) for time, message in plain["messages"]]
        return cls(client, plain["end"], messages, plain["local"])
