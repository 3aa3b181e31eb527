"""Messages of clients as the server sees them, and their mean."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from bench.params import Params


@dataclass
class Message:
    """An upload as the server sees it.

    Attributes:
        client: id of the sender.
        values: the uploaded values by name.
        weight: weight in averages.
        version: the server version that the client had downloaded.
        staleness: number of server versions made since then.
        base: the values that the client had downloaded.
    """

    client: int
    values: dict[str, Any]
    weight: float
    version: int
    staleness: int = 0
    base: dict[str, Any] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Any:
        return self.values[name]


def mean(messages: Sequence[Message], name: str, *, equal: bool = False) -> Any:
    """Weighted mean of the messages' values under `name`, of weights as well as BatchNorm buffers.

    Messages without that name are left out. Under the BatchNorm policy `local`, the buffers of the mean are replaced
    when the generic model is tested.

    Args:
        messages: the uploads of a version.
        name: name of the averaged value, a model value or a tensor of any shape.
        equal: weigh all messages equally, and not by `Message.weight`.

    Returns:
        A value of the same shape.

    Raises:
        ValueError: there are no such messages, their weights sum to 0, or their specs differ.
    """
    values = [m.values[name] for m in messages if name in m.values]
    if not values:
        raise ValueError(_nobody_sent(name, messages))
    weights = [1.0 if equal else m.weight for m in messages if name in m.values]
    whole = sum(weights)
    if whole <= 0:
        raise ValueError(f"the weights of all messages with {name!r} sum to {whole:g}: there is no mean")
    share = [weight / whole for weight in weights]
    if isinstance(values[0], Params):
        if any(v.spec is not values[0].spec and v.spec != values[0].spec for v in values):  # usually one object
            raise ValueError(f"{name!r} has different architectures: they cannot be averaged")
        return Params(
            _weighted([v.weights for v in values], share), _weighted([v.buffers for v in values], share), values[0].spec
        )
    return _weighted(values, share)


def _nobody_sent(name: str, messages: Sequence[Message]) -> str:
    sent = sorted({other for message in messages for other in message.values})
    if not sent:
        return f"no client sent {name!r}: a client's round has to `yield Upload({{{name!r}: ...}})`"
    return f"no client sent {name!r}, but {', '.join(map(repr, sent))}: an upload has the name that `mean_of` says"


def _weighted(tensors: list[Tensor], share: list[float]) -> Tensor:
    if not tensors[0].numel():
        return tensors[0]
    total: Tensor = tensors[0] * share[0]
    for tensor, weight in zip(tensors[1:], share[1:], strict=True):  # stacking all models would double the memory
        total.add_(tensor, alpha=weight)
    return total
