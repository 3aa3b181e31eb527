"""Profiles of devices and networks: the values of a cell's setting `clock`.

The numbers of the presets are round figures that we chose, not measurements.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from bench.errors import did_you_mean

Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Listed = BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value)
"""Converts a list in a `Profile` to a tuple, since after `resolve` strict validation rejects a list for a tuple."""


def alone(value: Any) -> Any:
    """A value in place of a list of nothing else: clients or rounds that take it in turn all have it."""
    return value[0] if isinstance(value, tuple) and len(set(value)) == 1 else value


class Strict(BaseModel):
    """A model that names the known keys where it refuses an unknown one."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_keys(cls, value: Any) -> Any:
        keys = [*cls.model_fields, *(["preset"] if cls is Profile else [])]
        for key in value if isinstance(value, Mapping) else ():
            if key not in cls.model_fields:
                hint = did_you_mean(str(key), keys) or f" Known: {', '.join(keys)}"
                raise ValueError(f"unknown key {key!r}.{hint}")
        return value


class Spread(Strict):
    """A lognormal distribution over clients."""

    median: Rate
    sigma: float = Field(0.5, ge=0, le=5, description="standard deviation of the logarithm")


Amount = Annotated[Rate | Annotated[tuple[Rate, ...], Field(min_length=1), Listed] | Spread, AfterValidator(alone)]
"""One value for all clients, a list of values that clients take in turn, or a distribution."""


class SlowClients(Strict):
    """A fixed set of slow clients: the listed `clients`, or a `share` of all clients, drawn once."""

    clients: Annotated[tuple[int, ...], Listed] = ()
    share: float = Field(0.0, ge=0, le=1)
    factor: float = Field(ge=1, description="how many times longer they compute")


class SlowRounds(Strict):
    """Slow-downs that may hit any client, drawn anew in each round."""

    probability: float = Field(ge=0, le=1)
    factor: float = Field(ge=1, description="how many times longer the round's computing takes")


class Profile(Strict):
    """Speeds of clients and of their connections.

    Attributes:
        samples_per_second: single samples per second, of gradients and of forward passes.
        models: factor on that speed by architecture (1 if it is not listed).
        uplink, downlink: bytes per second.
        latency: additional seconds for every message, in both directions.
        slow_clients, slow_rounds: stragglers.
        dropout: probability that a selected client takes no part in a round; it then receives and sends nothing.
    """

    samples_per_second: Amount = 1000.0
    models: dict[str, Rate] = Field(default_factory=dict)
    uplink: Amount = 1e6
    downlink: Amount = 1e7
    latency: float = Field(0.0, ge=0, allow_inf_nan=False)
    slow_clients: SlowClients | None = None
    slow_rounds: SlowRounds | None = None
    dropout: float = Field(0.0, ge=0, lt=1)


PRESETS: dict[str, dict[str, Any]] = {
    "uniform": {},
    "mobile": {
        "samples_per_second": {"median": 200, "sigma": 0.7},
        "uplink": {"median": 1e6, "sigma": 0.7},
        "downlink": {"median": 4e6, "sigma": 0.7},
        "latency": 0.05,
        "slow_rounds": {"probability": 0.1, "factor": 3},
    },
    "datacenter": {"samples_per_second": 1e4, "uplink": 1e9, "downlink": 1e9, "latency": 0.001},
}


def resolve(value: Any) -> Any:
    """Turn a preset's name, or a mapping that may change a `preset`, into the mapping for a `Profile`.

    Raises:
        ValueError: there is no preset of that name.
    """
    if isinstance(value, str):
        value = {"preset": value}
    if not isinstance(value, Mapping) or "preset" not in value:
        return value
    name = value["preset"]
    if not isinstance(name, str) or name not in PRESETS:
        raise ValueError(f"{name!r} is no preset; there are {', '.join(PRESETS)}")
    return {**PRESETS[name], **{key: part for key, part in value.items() if key != "preset"}}
