"""Checks of single values that a user wrote: settings, hyperparameters, options of data sets, partitions and models.

Validation is strict: `"5"` and `true` are not numbers, but 5 may stand for 5.0. Messages do not give the value's place
in the file; the code that reads a grid file adds it.
"""

import functools
import importlib
import importlib.util
import inspect
import json
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails, to_jsonable_python

from bench.config.timeline import misfits
from bench.errors import UserError, did_you_mean, to_install
from bench.plugin import (
    METHODS,
    PARTITIONS,
    Registry,
)
from bench.settings import BY_GROUPS, NO_TRIGGER, RECORDED, Settings

Problems = dict[str, str]  # messages by key; the key "" is for problems that belong to no single key

FROM_THE_HARNESS = {
    "data_root", "download", "dataset", "clients", "alpha", "fixed_tests", "seed", "own", "shape", "classes",
}  # fmt: skip


_IN_WORDS_OF_YAML = {
    "bool_type": "should be true or false",
    "int_type": "should be an integer",
    "int_from_float": "should be an integer",
    "int_parsing": "should be an integer",
    "float_type": "should be a number",
    "string_type": "should be text",
    "tuple_type": "should be a list",
    "list_type": "should be a list",
    "dict_type": "should be a mapping",
    "model_type": "should be a mapping",
    "dataclass_type": "should be a mapping",
    "json_invalid": "is not text in UTF-8",  # of a value that was written as JSON: it holds half a letter
    "extra_forbidden": "is no key that can stand here",
    "too_short": "should have {min_length} or more values",
    "too_long": "should have {max_length} values at most",
    "value_error": "{error}",
}


class _NoHyperparameters(BaseModel):
    """The hyperparameter class of methods and rules that declare none."""


def hyper_class(registry: Registry[Any], name: str) -> type[BaseModel]:
    """The class of the hyperparameters of a method or server rule.

    Raises:
        UserError: unknown name.
    """
    hyper: type[BaseModel] = getattr(registry.declaration(name), "Hyper", _NoHyperparameters)
    return hyper


def unknown(kind: str, word: str, names: list[str], of: str = "") -> str:
    """The message for an unknown name, with the most similar known one or all known ones."""
    hint = did_you_mean(word, names) or f" Known: {', '.join(sorted(names)) or 'none'}"
    return f"unknown {kind} {word!r}{of and f' of {of}'}.{hint}"


def check_field(model: type[BaseModel], key: str, value: Any) -> Any:
    """The value, checked and converted as a field of `model`, as a JSON value.

    Raises:
        UserError: wrong type or out of range.
    """
    return _convert(_field_adapter(model, key), key, value)


def complete_hyper(registry: Registry[Any], name: str, values: dict[str, Any]) -> tuple[dict[str, Any], Problems]:
    """All hyperparameters of a method or server rule as JSON values, with defaults, and the problems of `values`.

    Raises:
        UserError: unknown name.
    """
    model = hyper_class(registry, name)
    fields = list(model.model_fields)
    problems = {key: unknown("hyperparameter", key, fields, repr(name)) for key in values if key not in fields}
    if problems:
        return values, problems
    try:
        return model.model_validate_json(json.dumps(values), strict=True).model_dump(mode="json"), {}
    except ValidationError as error:
        return values, _by_key(error, values)


def complete_options(registry: Registry[Any], name: str, values: dict[str, Any]) -> tuple[dict[str, Any], Problems]:
    """All options of a data set, partition or model as JSON values, with defaults, and the problems of `values`.

    Those of another package's model (`PACKAGE/NAME`) are returned as they are.

    Raises:
        UserError: unknown name.
    """
    parameters = _options(registry, name)
    owner = f"{registry.kind} {name!r}"
    if package := registry.package_of(name):  # whose own constructor checks them
        missing = importlib.util.find_spec(package) is None
        return values, {
            "": f"{owner}: the package {package} is not installed: {to_install(package)}"
        } if missing else {}
    problems = {key: unknown("option", key, list(parameters), owner) for key in values if key not in parameters}
    result = {}
    for key, parameter in parameters.items():
        if key in values:
            try:
                result[key] = _convert(_option_adapter(registry, name, key), key, values[key])
            except UserError as error:
                problems[key] = str(error)
        elif parameter.default is not parameter.empty:
            result[key] = to_jsonable_python(parameter.default)
        elif not problems:  # otherwise an unknown key may be a misspelling of this one
            problems[""] = f"{owner} needs the option {key!r}"
    return result, problems


def needs_alpha(partition: str) -> bool:
    """Whether a partition is drawn with a Dirichlet concentration.

    Raises:
        UserError: unknown partition.
    """
    return "alpha" in inspect.signature(PARTITIONS.declaration(partition)).parameters


def conflicts(cell: Settings) -> Problems:
    """Problems of settings that do not go together, by the setting to blame.

    A name that is not known is no problem here; `completed` and the readers of grids refuse it.
    """
    problems = {}
    if cell.partition in PARTITIONS.names():
        if needs_alpha(cell.partition) and cell.alpha is None:
            problems["alpha"] = f"the partition {cell.partition!r} needs alpha; add for instance `alphas: [1, 0.1]`"
        if not needs_alpha(cell.partition) and cell.alpha is not None:
            problems["alpha"] = f"the partition {cell.partition!r} has no alpha; take `alpha` or `alphas` out"
    if cell.precision != "fp32" and cell.dtype != "float32":
        problems["precision"] = (
            f"precision {cell.precision} is for float32; take out `dtype: {cell.dtype}` or `precision`"
        )
    if cell.optimizer.name != "sgd" and (cell.momentum or cell.nesterov):
        problems["optimizer"] = (
            f"optimizer {cell.optimizer.name} has no momentum of sgd; take out `momentum` and `nesterov`"
        )
    if cell.adapters is not None and cell.frozen:
        problems["frozen"] = (
            "`adapters` freeze all layers but those that their `train` names; take out `frozen` and say there what is "
            "trained"
        )
    if cell.clients == "all" and cell.partition not in BY_GROUPS:
        problems["clients"] = (
            f"clients: all is of {' and '.join(BY_GROUPS)}, whose clients are groups of the data; the partition "
            f"{cell.partition!r} needs a number"
        )
    elif cell.clients != "all" and cell.new_clients >= cell.clients:
        problems["new_clients"] = f"new_clients = {cell.new_clients} leaves none of {cell.clients} clients to train"
    if problem := misfits(cell):
        problems["timeline"] = problem
    if cell.timeline and cell.attack is not None:
        problems["attack"] = "attack: clients whose data change (`timeline`) cannot be malicious; take out one of both"
    stored = [test.name for test in cell.tests if test.name in ("corrupted", "file")]
    if cell.normalise == "per_client" and stored:
        problems["tests"] = (
            f"tests: {stored[0]} needs samples that belong to no client, and `normalise: per_client` has statistics of "
            "clients only; take one of the two out"
        )
    if cell.normalise and (cell.timeline or cell.has_trigger):
        other = "timeline" if cell.timeline else "attack"
        problems["normalise"] = f"normalise: its statistics are of data that stay; take out `{other}` or `normalise`"
    if cell.select_by not in (*RECORDED, *cell.metrics):
        problems["select_by"] = f"select_by: {cell.select_by} needs that score: add it to `metrics`"
    if cell.select_by != "accuracy" and cell.protocol == "paper":
        problems["select_by"] = "select_by: the protocol paper reports the best test accuracy; take out `select_by`"
    if any(test.name == "triggered" for test in cell.tests) and not cell.has_trigger:
        problems["tests"] = NO_TRIGGER
    if cell.method in METHODS.names():
        kind = METHODS.declaration(cell.method)
        if kind.public and cell.public is None:
            problems["method"] = (
                f"the method {cell.method!r} needs public samples; add for instance `public: {{name: cifar100}}`"
            )
        if kind.adapter and (cell.adapters is None or cell.adapters.name != kind.adapter):
            problems["adapters"] = (
                f"the method {cell.method!r} needs adapters of the kind {kind.adapter}; add for instance "
                f"`adapters: {{name: {kind.adapter}, rank: 8}}`"
            )
        if cell.channel and kind.bound:
            problems["channel"] = f"the method {cell.method!r} sends no messages; take out `channel`"
        if cell.client_models and not kind.mixes_models:
            problems["client_models"] = (
                f"the clients of method {cell.method!r} must have one architecture; take out `client_models`"
            )
    return problems


def shown(value: Any) -> str:
    """A value as text for messages, shortened to 60 characters."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


def _convert(adapter: TypeAdapter[Any], key: str, value: Any) -> Any:
    try:  # validate as JSON: strict types then still accept a list for a tuple and text for a path
        return to_jsonable_python(adapter.validate_json(json.dumps(value), strict=True))
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(_sentence(key, value, first["loc"], first)) from None


def _sentence(key: str, value: Any, loc: tuple[int | str, ...], error: ErrorDetails) -> str:
    """The message about a value, or about the part of it at `loc`."""
    if loc[-1:] == ("[key]",):
        return f"{key} = {shown(value)}: the key {loc[-2]!r} {problem_text(error)}"
    for step in loc:
        if isinstance(value, dict) and str(step) in value:
            key, value = f"{key}.{step}", value[str(step)]
        elif isinstance(value, list) and isinstance(step, int) and step < len(value):
            key, value = f"{key}[{step}]", value[step]
        # other steps are pydantic's names for the variants of a union, or keys that are missing
    return f"{key} = {shown(value)}{':' if error['type'] == 'value_error' else ''} {problem_text(error)}"


def problem_text(error: ErrorDetails) -> str:
    """The words of a problem that pydantic reports, to follow the value, e.g. `should be an integer`."""
    if error["type"] == "missing":
        last = error["loc"][-1]
        return f"is too short: value {last + 1} is missing" if isinstance(last, int) else f"needs {last!r}"
    if error["type"] in _IN_WORDS_OF_YAML:
        return _IN_WORDS_OF_YAML[error["type"]].format(**error.get("ctx", {}))
    message = error["msg"].removeprefix("Input ")
    return f"{message[0].lower()}{message[1:]}"


def _by_key(error: ValidationError, values: dict[str, Any]) -> Problems:
    problems: Problems = {}
    for details in error.errors():
        key = str(details["loc"][0]) if details["loc"] else ""
        text = _sentence(key, values[key], details["loc"][1:], details) if key in values else problem_text(details)
        problems.setdefault(key, text)
    return problems


@functools.cache
def _field_adapter(model: type[BaseModel], key: str) -> TypeAdapter[Any]:
    field = model.model_fields[key]
    kind: Any = Annotated[field.annotation, field]
    return TypeAdapter(kind)


def _options(registry: Registry[Any], name: str) -> dict[str, inspect.Parameter]:
    return _parameters(registry.declaration(name))  # a notebook may define a name again


@functools.cache
def _parameters(factory: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    parameters = inspect.signature(factory).parameters
    catch_all = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {k: p for k, p in parameters.items() if k not in FROM_THE_HARNESS and p.kind not in catch_all}


def _option_adapter(registry: Registry[Any], name: str, key: str) -> TypeAdapter[Any]:
    return _adapter(registry.declaration(name), key)


@functools.cache
def _adapter(factory: Callable[..., Any], key: str) -> TypeAdapter[Any]:
    annotation: Any = _parameters(factory)[key].annotation
    return TypeAdapter(Any if annotation is inspect.Parameter.empty else annotation)
