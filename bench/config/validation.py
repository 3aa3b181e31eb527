"""Checks of single values that a user wrote: settings, hyperparameters, options of data sets, partitions and models.

Validation is strict: `"5"` and `true` are not numbers, but 5 may stand for 5.0. Messages do not give the value's place
in the file; the code that reads a grid file adds it.
"""

import copy
import functools
import importlib.util
import json
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails, to_jsonable_python

from bench.errors import UserError, did_you_mean, to_install
from bench.plugin import CHANNELS, METHODS, METRICS, SELECTIONS, Registry
from bench.samples.corruptions import KINDS
from bench.settings import CorruptedTest, DataChange, OperationPart, RegisteredPart, Settings, ShiftedTest

Problems = dict[str, str]  # messages by key; the key "" is for problems that belong to no single key

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
    "model_attributes_type": "should be a name or a mapping",
    "dataclass_type": "should be a mapping",
    "json_invalid": "is not text in UTF-8",  # of a value that was written as JSON: it holds half a letter
    "extra_forbidden": "is no key that can stand here",
    "too_short": "should have {min_length} or more values",
    "too_long": "should have {max_length} values at most",
    "union_tag_invalid": "has the name {tag!r}; there are {expected_tags}",
    "union_tag_not_found": "needs {discriminator}",
    "value_error": "{error}",
}


def unknown(kind: str, word: str, names: list[str], of: str = "") -> str:
    """The message for an unknown name, with the most similar known one or all known ones."""
    hint = did_you_mean(word, names) or f" Known: {', '.join(sorted(names)) or 'none'}"
    return f"unknown {kind} {word!r}{of and f' of {of}'}.{hint}"


def check_field(model: type[BaseModel], key: str, value: Any) -> Any:
    """The value, checked and converted as a field of `model`, as a JSON value.

    Raises:
        UserError: wrong type or out of range.
    """
    return to_jsonable_python(_validated(model, key, value))


def _validated(model: type[BaseModel], key: str, value: Any) -> Any:
    try:
        return _field_adapter(model, key).validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        # of a union's variants the one that is meant: its problem is the deepest, or not that of another type
        types = "_type", "literal_error"
        meant = max(error.errors(), key=lambda problem: (len(problem["loc"]), not problem["type"].endswith(types)))
        raise UserError(_sentence(key, value, meant["loc"], meant)) from None


def complete(registry: Registry[Any], name: str, values: dict[str, Any]) -> tuple[dict[str, Any], Problems]:
    """All options of a registered part as JSON values, with defaults, or those that are sound, and the problems of the
    others.

    Those of another package's model (`PACKAGE/NAME`) are returned as they are, as its own constructor checks them.

    Raises:
        UserError: unknown name, or its package is not installed.
    """
    model = registry.options(name)
    names = [field.alias or key for key, field in model.model_fields.items()]
    word, owner = ("hyperparameter", repr(name)) if registry.classes else ("option", f"{registry.kind} {name!r}")
    if package := registry.package_of(name):
        if importlib.util.find_spec(package) is None:
            raise UserError(f"{owner}: the package {package} is not installed: {to_install(package)}")
        return values, {}
    problems = {key: unknown(word, key, names, owner) for key in values if key not in names}
    known = {key: value for key, value in values.items() if key in names}
    try:  # validate as JSON: strict types then still accept a list for a tuple and text for a path
        options = _completed_options(model, json.dumps(known))
    except ValidationError as error:
        for details in error.errors():
            key = str(details["loc"][0]) if details["loc"] else ""
            if details["type"] == "json_invalid":  # said of all of them: look for the one with half a letter
                key = next((key for key, value in known.items() if not _is_text(value)), "")
            if key in values:
                problems.setdefault(key, _sentence(key, values[key], details["loc"][1:], details))
            elif details["type"] != "missing":
                problems.setdefault("", f"{owner}: {problem_text(details)}")
            elif not problems:  # otherwise an unknown key may be a misspelling of this one
                problems[""] = f"{owner} needs the {word} {key!r}"
    if problems:
        return {key: value for key, value in known.items() if key not in problems}, problems
    return copy.deepcopy(options), {}


def _is_text(value: Any) -> bool:
    """Whether a value can be written as JSON in UTF-8."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


@functools.lru_cache(maxsize=1000)  # most cells of a grid share them
def _completed_options(model: type[BaseModel], text: str) -> dict[str, Any]:
    return model.model_validate_json(text, strict=True).model_dump(mode="json", by_alias=True, warnings=False)


def completed_part(registry: Registry[Any], name: str, values: dict[str, Any]) -> dict[str, Any]:
    """All options of a registered part, with defaults.

    Raises:
        UserError: unknown name, or the first problem of `values`.
    """
    options, problems = complete(registry, name, values)
    for problem in problems.values():
        raise UserError(problem)
    return options


def complete_setting(key: str, value: Any) -> Any:
    """The value of a field of `Settings` whose parts have all their options, with defaults.

    Raises:
        UserError: an unknown name, wrong options, or parts that do not go together.
    """
    for name in {"selection": (value,), "metrics": value}.get(key, ()):
        (SELECTIONS if key == "selection" else METRICS).declaration(name)
    value = _complete(value)
    if key == "channel":
        _check_order(value)
    if key == "tests":
        labels = [label for test in value for label in test.labels]
        if repeated := [label for label in dict.fromkeys(labels) if labels.count(label) > 1]:
            raise UserError(f"tests: {repeated[0]!r} is listed twice")
    return value


def _complete(value: Any) -> Any:
    match value:
        case tuple():
            return tuple(map(_complete, value))
        case RegisteredPart():
            options = completed_part(value.registry, value.name, value.options)
            kind = type(value)
            settings = {key: getattr(value, key) for key in kind.model_fields}  # not of the part: `size` of public data
            return kind(**settings, **{key: option for key, option in options.items() if key not in settings})
        case CorruptedTest():
            for corruption in value.kinds:
                if corruption not in KINDS:
                    raise UserError(unknown("corruption", corruption, list(KINDS)))
            return value.model_copy(update={"kinds": value.kinds or tuple(KINDS)})
        case ShiftedTest() | DataChange():
            return value.model_copy(update={"shifts": _complete(value.shifts)})
    return value


_STAGES = ("change", "select", "encode")
"""What operations of a channel do, in the order in which they may follow each other; but for the first, one of each."""


def _check_order(channel: Sequence[OperationPart]) -> None:
    """Check that the operations of a channel can follow each other (`bench.channel.operation.ChannelOperation.stage`).

    Raises:
        UserError: they cannot.
    """
    text = f"channel = {shown([part.name for part in channel])}"
    before: Any = None
    for i, part in enumerate(channel):
        name, kind = part.name, CHANNELS.declaration(part.name)
        stage = getattr(kind, "stage", "")
        if stage not in _STAGES:
            raise UserError(f"channel {name!r}: stage = {stage!r} should be {' or '.join(map(repr, _STAGES))}")
        if before and _STAGES.index(stage) < _STAGES.index(before.stage):
            raise UserError(f"{text}: {name} should come before {channel[i - 1].name}")
        if before and stage == before.stage != "change":
            raise UserError(f"{text}: {channel[i - 1].name} and {name} cannot be combined; remove one")
        if getattr(kind, "needs_bound", False) and not getattr(before, "bounds", False):
            known = [other for other in CHANNELS.names() if getattr(CHANNELS.declaration(other), "bounds", False)]
            raise UserError(f"{text}: {name} should come right after {' or '.join(known)}")
        before = kind


def check_setting(key: str, value: Any) -> Any:
    """The checked value of a setting in a grid, as a JSON value: a field of `Settings`, or a method's
    `name.hyperparameter`.

    Raises:
        UserError: unknown key, wrong type, or out of range.
    """
    method, dot, name = key.partition(".")
    if not dot:
        return to_jsonable_python(complete_setting(key, _validated(Settings, key, value)))
    model = METHODS.options(method)
    if name not in model.model_fields:
        raise UserError(unknown("hyperparameter", name, list(model.model_fields), repr(method)))
    return check_field(model, name, value)


def shown(value: Any) -> str:
    """A value as text for messages, shortened to 60 characters."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


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


@functools.cache
def _field_adapter(model: type[BaseModel], key: str) -> TypeAdapter[Any]:
    field = model.model_fields[key]
    kind: Any = Annotated[field.annotation, field]
    return TypeAdapter(kind)
