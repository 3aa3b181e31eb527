"""A cell with few clients that hold noise: rounds of it are timed, its memory is counted, its messages are tried."""

from typing import Any

import numpy as np

from bench.data import Partition, noise
from bench.errors import UserError
from bench.federation.federation import Federation
from bench.rng import generator
from bench.runs.forecast.outline import ClientShares, DataSize
from bench.settings import Settings


def stand_in(settings: Settings, size: DataSize, shares: ClientShares, **execution: Any) -> Federation:
    """Build a federation of `shares.clients` clients with equal shares of noise, all of which take part.

    Args:
        size: of its data set; the numbers of samples are those of `shares`.
        execution: further arguments of the federation, such as its device.

    Raises:
        UserError: the cell would be refused.
    """
    clients, each = shares.clients, (shares.train, shares.validation, shares.test)
    train, validation, test = (
        tuple(np.arange(n) + i * n + clients * sum(each[:k]) for i in range(clients)) for k, n in enumerate(each)
    )
    used = clients * sum(each)
    data = noise(size.shape, size.classes, used + shares.common, generator("estimate", clients))
    changes = {"clients": clients, "participation": 1.0, "new_clients": 0, "stragglers": {}, "metrics": (), "tests": ()}
    changes |= {"pretrained": None, "timeline": ()}
    if settings.attack is not None:  # of few clients, as many may round to none
        changes["attack"] = settings.attack.model_copy(update={"share": 0.5})
    public = None
    if settings.public:
        samples = settings.public.size or min(size.train, 5000)
        public = noise(size.shape, size.classes, samples, generator("estimate"))
    partition = Partition(train, validation, test, used + np.arange(shares.common))
    return Federation(
        settings.model_copy(update=changes), dataset=data, partition=partition, public=public, **execution
    )


ALIKE: dict[str, Any] = {
    "seed": 0, "partition_seed": None, "alpha": None, "label": "", "case": "", "lr": 0.1, "rounds": 1, "metrics": (),
    "select_by": "accuracy", "tests": (),
}  # fmt: skip
"""Settings that make no difference to a cell's work and to which values a message has."""
_TRIED: set[tuple[str, DataSize]] = set()


def try_messages(settings: Settings, size: DataSize) -> None:
    """Refuse a channel or an attack for which a cell's messages have nothing, by a round of two clients of two samples.
    A method that fails there is let through; it is refused after its first round.

    Raises:
        UserError: the cell would be refused.
    """
    alike = settings.model_copy(update={**ALIKE, "partition_options": {}, "steps": 1, "batch_size": 2})
    key = alike.model_dump_json(exclude={"protocol", "validation_share"}), size
    if key in _TRIED:
        return
    try:
        stand_in(alike, size, ClientShares(2, 2, 1, 1, 0), executor="sequential").advance()
    except UserError:
        raise
    except Exception:  # a fault of the method, whatever it raises, is told where the run meets it
        return
    _TRIED.add(key)
