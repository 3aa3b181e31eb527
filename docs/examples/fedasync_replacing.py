"""FedAsync that takes over the last client's running statistics; a plug-in of fedasync_statistics.yaml."""

from collections.abc import Sequence
from typing import Any

from bench.method import Message
from bench.plugin import SERVER_RULES
from methods.server_rules import FedAsync


@SERVER_RULES.register("fedasync_replacing")
class Replacing(FedAsync):
    """Weights are mixed as in `fedasync`, running statistics are replaced."""

    def combine(self, old: Any, messages: Sequence[Message], name: str) -> Any:
        return super().combine(old, messages, name).with_buffers(messages[-1][name].buffers)
