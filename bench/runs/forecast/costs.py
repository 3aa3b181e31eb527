"""What methods and models cost, looked up in two tables without torch; what they lack is counted (`counts.py`).

A method's row says what travels and what is kept in units of any model, and a model's row says how large these units
are. So one row of either kind serves all cells. `tools/forecast_costs.py` writes the tables.
"""

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bench.config.code_digests import is_own
from bench.plugin import METHODS, MODELS
from bench.settings import Settings

TABLES = {part: Path(__file__).with_name(f"{part}.json") for part in ("methods", "models")}

UNITS = "model", "head", "width", "classes", "classes x classes", "public samples x classes", "1"
"""Numbers in terms of which messages and states are counted: those of a model with its buffers, of its head, ..."""


class NumbersSent(NamedTuple):
    """Numbers (of 4 bytes in float32) in terms of `UNITS`: a fixed amount, and an amount for each client."""

    fixed: Mapping[str, float]
    each: Mapping[str, float]

    def of(self, units: Mapping[str, float], clients: float) -> float:
        """How many numbers these are for so many clients, if `units` are so large."""
        fixed, each = (sum(factor * units[unit] for unit, factor in part.items()) for part in self)
        return max(0.0, fixed + clients * each)


class MethodCosts(NamedTuple):
    """What a method does in a round, and what it holds.

    Attributes:
        steps: a, b, c, d: a client takes a T + b B + c + d P steps, where T are the steps of one training as the
            settings say, B the batches of one epoch, and P the public samples.
        up, down: numbers that are sent in a round.
        state: numbers that a checkpoint has.
        held: models in memory: a fixed number between rounds and at the peak of one, and the same for each client.
        in_step: models that a client's step has in memory beside those of a plain gradient.
        trigger: when a version closes: `everyone`, `tick`, or after so many messages.
        everyone: whether all clients take part in every round, whatever `participation` says.
    """

    steps: tuple[float, float, float, float]
    up: NumbersSent
    down: NumbersSent
    state: NumbersSent
    held: tuple[float, float, float, float]
    in_step: float
    trigger: str | int
    everyone: bool


class StepRates(NamedTuple):
    """Seconds of one core, or of a GPU: of a client's step, of one more sample in it, and of an evaluated sample."""

    step: float
    sample: float
    evaluated: float


class ModelCosts(NamedTuple):
    """Sizes of a network, and how fast it trains.

    Attributes:
        trained, frozen, buffers, head: numbers of parameters that are trained, of all that is frozen, of buffers that
            are not, and of the trained parameters of the head.
        width: numbers of a sample's features.
        on_features: whether features take the samples' place, as the whole body is frozen.
        gradient, evaluated: bytes in float32 of a plain gradient and of an evaluation: a fixed number, and one for each
            sample.
        convolutional: whether it has convolutions.
        alone: whether clients train one after the other on a CPU, as they gain nothing side by side.
        rates: of FedAvg's steps.
        features_seconds: seconds of one sample's features, where these take its place.
    """

    trained: int
    frozen: int
    buffers: int
    head: int
    width: int
    on_features: bool
    gradient: tuple[float, float]
    evaluated: tuple[float, float]
    convolutional: bool
    alone: bool
    rates: StepRates
    features_seconds: float = 0.0


@functools.cache
def table(part: str) -> dict[str, dict[str, Any]]:
    """The rows of `methods.json` or `models.json`, by their keys."""
    content: dict[str, dict[str, Any]] = json.loads(TABLES[part].read_text(encoding="utf-8"))
    return content


def method_key(settings: Settings) -> str:
    """A cell's method, server rule and hyperparameters, as far as they decide its costs.

    Fractional hyperparameters do not, as steps get them as tensors; static ones do, which may be shares of samples.
    """
    fields = METHODS.options(settings.method).model_fields
    changed = {
        name: value
        for name, value in settings.hp.items()
        if value != fields[name].default and (not isinstance(value, float) or _is_static(fields[name]))
    }
    rule = {} if settings.server is None else {"name": settings.server.name, **settings.server.options}
    server = {name: value for name, value in rule.items() if not isinstance(value, float)}
    return json.dumps([settings.method, changed, server], sort_keys=True)


def _is_static(field: Any) -> bool:
    return bool((field.json_schema_extra or {}).get("static"))


def as_method_costs(row: dict[str, Any]) -> MethodCosts:
    """A row of the table in its type."""
    amounts = {name: NumbersSent(*row[name]) for name in ("up", "down", "state")}
    return MethodCosts(**{**row, **amounts})


def model_key(name: str, options: dict[str, Any], shape: tuple[int, ...], classes: int) -> str:
    """A network without frozen tensors and adapters; shapes of tokens have the vocabulary in them."""
    return json.dumps([name, options, type(shape).__name__, shape, classes], sort_keys=True)


def model_row(settings: Settings, name: str, shape: tuple[int, ...], classes: int) -> Any:
    if settings.frozen or settings.adapters or is_own(MODELS, name):
        return None
    options = settings.model_options if name == settings.model else {}
    return table("models").get(model_key(name, options, shape, classes))


def is_known(settings: Settings, shape: tuple[int, ...], classes: int) -> bool:
    """Whether all models of a cell are in the table, so that they take samples of this shape in batches of two."""
    names = settings.architectures or (settings.model,)
    plain = settings.pretrained is None and settings.batch_size > 1
    return plain and all(model_row(settings, name, shape, classes) is not None for name in names)


def kind(settings: Settings) -> str:
    """The settings that decide a cell's cost and how its samples are divided, as text."""
    fields = {name: value for name, value in settings if name not in _COSTLESS}
    same = settings.model_construct(**fields).model_dump_json(include=set(fields) - {"hp", "server"})
    return method_key(settings) + same


_COSTLESS = {"seed", "partition_seed", "alpha", "label", "case", "lr", "metrics", "select_by", "tests"}
"""Settings in which cells of equal cost differ."""


class CannotCountError(Exception):
    """A method whose rounds fail on the small networks and few samples with which they are counted."""
