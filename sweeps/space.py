"""Search space of a study: settings and hyperparameters with ranges, checked against the limits of the method."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.config.validation import check_setting, completed_part, shown, unknown
from bench.errors import UserError
from bench.plugin import METHODS
from bench.settings import Settings

if TYPE_CHECKING:
    from optuna.trial import Trial

OWN = "own"
"""In a study's `space`: the range in the method's own file."""

NOT_SEARCHED = {
    "method", "label", "case", "hp", "server", "dataset", "dataset_options", "partition", "partition_options", "shifts",
    "normalise", "alpha", "clients", "participation", "selection", "channel", "attack", "public", "model",
    "model_options", "pretrained", "client_models", "seed", "partition_seed", "protocol", "validation_share", "rounds",
    "new_clients", "new_client_epochs", "stragglers", "timeline", "eval_every", "metrics", "select_by", "tests",
}  # fmt: skip
"""Settings that pose the problem: accuracies under different values of them cannot be compared, or not fairly."""

_EDGE = 0.05


@dataclass(frozen=True)
class Dimension:
    """One searched setting: a list of values, or an interval.

    Attributes:
        key: a field of `Settings`, or `method.hyperparameter`.
        choices: the values to try; empty: the interval from `low` to `high`, whole numbers if both are.
        log: whether the interval is searched on a logarithmic scale.
    """

    key: str
    choices: tuple[Any, ...] = ()
    low: float = 0.0
    high: float = 0.0
    log: bool = False

    @property
    def name(self) -> str:
        """The setting without its method."""
        return self.key.rpartition(".")[2]

    @property
    def text(self) -> str:
        """The range in words, e.g. `0.001 to 1000 (log)` or `0.1, 0.2`."""
        if self.choices:
            return ", ".join(value if isinstance(value, str) else shown(value) for value in self.choices)
        return f"{self.low:g} to {self.high:g}" + (" (log)" if self.log else "")

    def suggest(self, trial: "Trial") -> Any:
        """Ask a trial for its value."""
        if self.choices:
            return trial.suggest_categorical(self.key, self.choices)
        if isinstance(self.low, int) and isinstance(self.high, int):
            return trial.suggest_int(self.key, self.low, self.high, log=self.log)
        return trial.suggest_float(self.key, self.low, self.high, log=self.log)

    def has(self, value: Any) -> bool:
        """Whether the space has a value."""
        if self.choices:
            return value in self.choices
        return is_number(value) and self.low <= value <= self.high

    def at_edge(self, value: Any) -> bool:
        """Whether a value lies within 5 % of an end of the interval, or is the least or greatest of the numbers."""
        if self.choices:
            numbers = list(filter(is_number, self.choices))
            return len(numbers) > 1 and value in (min(numbers), max(numbers))
        low, high, place = (math.log(x) if self.log else x for x in (self.low, self.high, value))
        return min(place - low, high - place) <= _EDGE * (high - low)


def is_number(value: Any) -> bool:
    """Whether a value is a number, which true and false are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def own_dimensions(method: str) -> list[Dimension]:
    """All ranges in a method's own file.

    Raises:
        UserError: unknown method.
    """
    fields = METHODS.options(method).model_fields
    return [_own_range(f"{method}.{name}") for name in fields if _search(method, name)]


def read_dimension(key: str, entry: Any) -> Dimension:
    """Read a dimension from its entry in a study file: `own`, a list of values, or `{low, high, log}`.

    Raises:
        UserError: unknown key, nothing that can be searched, or values that are not allowed there.
    """
    method, dot, name = key.partition(".")
    if not dot and key in NOT_SEARCHED:
        raise UserError(f"{key!r} poses the problem, so it cannot be searched; give it to the grid")
    if not dot and key not in Settings.model_fields:
        raise UserError(unknown("setting", key, sorted(Settings.model_fields.keys() - NOT_SEARCHED)))
    if entry == OWN:
        if not dot:
            raise UserError(f"{key!r} is no method's own, so its range has to be given: {{low: ..., high: ...}}")
        if name in METHODS.options(method).model_fields and not _search(method, name):
            raise UserError(f"{key!r} has no range in the method's file; give one: {{low: ..., high: ...}}")
        return _own_range(key)
    if isinstance(entry, list):
        return _choices(key, entry)
    if isinstance(entry, dict):
        return _interval(key, entry)
    raise UserError(f"{key} = {shown(entry)} should be `own`, a list of values, or {{low: ..., high: ...}}")


def settings_at(base: Settings, values: dict[str, Any]) -> Settings:
    """Put searched settings into a cell; hyperparameters of other methods do not concern it.

    Raises:
        UserError: the method refuses them in combination.
    """
    prefix = f"{base.method}."
    hyperparameters = {key.removeprefix(prefix): value for key, value in values.items() if key.startswith(prefix)}
    hyper = completed_part(METHODS, base.method, base.hp | hyperparameters)
    common = {key: value for key, value in values.items() if "." not in key}
    return Settings.model_validate(base.model_dump() | common | {"hp": hyper})


def _search(method: str, name: str) -> dict[str, Any] | None:
    extra = METHODS.options(method).model_fields[name].json_schema_extra
    search = extra.get("search") if isinstance(extra, dict) else None
    return search if isinstance(search, dict) else None


def _own_range(key: str) -> Dimension:
    method, _, name = key.partition(".")
    if name not in METHODS.options(method).model_fields:
        check_setting(key, None)  # says which names there are
    search = _search(method, name) or {}
    return _choices(key, search["choices"]) if "choices" in search else _interval(key, search)


def _choices(key: str, entry: list[Any]) -> Dimension:
    values = tuple(check_setting(key, value) for value in entry)
    if len(values) < 2 or len({shown(value) for value in values}) < len(values):
        raise UserError(f"{key} = {shown(entry)} should list two or more different values")
    if any(isinstance(value, list | dict) for value in values):
        raise UserError(f"{key} = {shown(entry)} cannot be searched: its values are no plain numbers or words")
    return Dimension(key, choices=values)


def _interval(key: str, entry: dict[str, Any]) -> Dimension:
    if not {"low", "high"} <= entry.keys() <= {"low", "high", "log"} or not isinstance(entry.get("log", False), bool):
        raise UserError(f"{key} = {shown(entry)} should be {{low: ..., high: ...}}, with `log: true` if it is to be")
    low, high = (check_setting(key, entry[end]) for end in ("low", "high"))
    if not (is_number(low) and is_number(high)):
        raise UserError(f"{key} = {shown(entry)}: an interval needs numbers; list the values instead")
    log = entry.get("log", False)
    if not low < high or (log and low <= 0):
        raise UserError(
            f"{key} = {shown(entry)}: `low` should be below `high`{', and above 0 for `log`' if log else ''}"
        )
    return Dimension(key, low=low, high=high, log=log)
