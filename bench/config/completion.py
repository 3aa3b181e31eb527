"""Completion of a cell's settings: what a user named is known and fits, and what was left out has its default.

Messages do not give a setting's place in the file; the code that reads a grid file adds it.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pydantic_core import to_jsonable_python

from bench.config.validation import (
    Problems,
    check_field,
    complete_hyper,
    complete_options,
    conflicts,
    hyper_class,
    shown,
    unknown,
)
from bench.errors import UserError
from bench.plugin import (
    ATTACKS,
    CHANNELS,
    DATASETS,
    METHODS,
    METRICS,
    MODELS,
    PARTITIONS,
    SELECTIONS,
    SERVER_RULES,
    SHIFTS,
    Registry,
)
from bench.samples.corruptions import KINDS
from bench.settings import DataChange, FurtherTest, PublicSet, Settings

_STAGES = ("change", "select", "encode")
"""What operations of a channel do, in the order in which they may follow each other; but for the first, one of each."""


def completed(cell: Settings) -> dict[str, Any]:
    """Fill in what a user left out of the settings of a cell: hyperparameters and options, with their defaults.

    Returns:
        New values by the setting's name.

    Raises:
        UserError: an unknown method, hyperparameter, data set, option or other name, a value that it cannot have, or
            settings that do not go together.
    """
    parts = {
        "hp": complete_hyper(METHODS, cell.method, cell.hp),
        "dataset_options": complete_options(DATASETS, cell.dataset, cell.dataset_options),
        "model_options": complete_options(MODELS, cell.model, cell.model_options),
        "partition_options": complete_options(PARTITIONS, cell.partition, cell.partition_options),
    }
    further = [complete_options(MODELS, model, {})[1] for model in cell.architectures]
    SELECTIONS.declaration(cell.selection)
    for name in cell.metrics:
        METRICS.declaration(name)
    named = {key: complete(getattr(cell, key)) for key, complete in _COMPLETE.items()}
    together = conflicts(cell.model_copy(update=named))  # what an attack does is in its defaults, too
    for problems in (*(problems for _, problems in parts.values()), *further, together):
        for problem in problems.values():
            raise UserError(problem)
    return {key: value for key, (value, _) in parts.items()} | named


def check_setting(key: str, value: Any) -> Any:
    """The checked value of a setting in a grid: a field of `Settings`, or a method's `name.hyperparameter`.

    Raises:
        UserError: unknown key, wrong type, or out of range.
    """
    method, dot, name = key.partition(".")
    if dot:
        model = hyper_class(METHODS, method)
        if name not in model.model_fields:
            raise UserError(unknown("hyperparameter", name, list(model.model_fields), repr(method)))
        return check_field(model, name, value)
    if key == "selection" and isinstance(value, str):
        SELECTIONS.declaration(value)
    if key in _COMPLETE:
        checked = value if key in _NAMES else check_field(Settings, key, value)
        return to_jsonable_python(_COMPLETE[key](checked))
    if key == "metrics":
        names = check_field(Settings, key, value)
        for metric in names:
            METRICS.declaration(metric)
        return names
    return check_field(Settings, key, value)


def check_server(value: Any) -> dict[str, Any] | None:
    """A server rule, given as a name or a mapping, in the form of `Settings` with all hyperparameters.

    Raises:
        UserError: wrong shape, unknown rule, or wrong hyperparameters.
    """
    return _check_entry(SERVER_RULES, "server", "a rule", value)


def check_attack(value: Any) -> dict[str, Any] | None:
    """An attack, given as a name or a mapping, in the form of `Settings` with all hyperparameters.

    Raises:
        UserError: wrong shape, unknown attack, or wrong hyperparameters.
    """
    return _check_entry(ATTACKS, "attack", "an attack", value)


def _check_entry(registry: Registry[Any], key: str, what: str, value: Any) -> dict[str, Any] | None:
    """A setting that is a name or a mapping with `name`, completed; None if there is none."""
    if value is None:
        return None
    entry = {"name": value} if isinstance(value, str) else value
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise UserError(f"{key} = {shown(value)} should be the name of {what} or a mapping with `name`")
    hyperparameters = {name: part for name, part in entry.items() if name != "name"}
    hyper, problems = complete_hyper(registry, entry["name"], hyperparameters)
    if problems:
        raise UserError(next(iter(problems.values())))
    return {"name": entry["name"], **hyper}


def check_public(value: Any) -> PublicSet | None:
    """Public samples, whose options have the types of their data set's.

    Raises:
        UserError: an unknown data set, or wrong options.
    """
    if value is None:
        return None
    public = PublicSet.model_validate(value)
    options, problems = complete_options(DATASETS, public.name, public.options)
    if problems:
        raise UserError(next(iter(problems.values())))
    given = {key: options[key] for key in public.options}  # a default that is not written stays so: ids rest on that
    return PublicSet(name=public.name, size=public.size, **given)


def check_shifts(value: Any) -> tuple[dict[str, Any], ...]:
    """Shifts, each given as a name or a mapping with `name`, in the form of `Settings` with all options.

    Raises:
        UserError: wrong shape, an unknown shift, wrong options, or the same shift twice.
    """
    return _check_list(complete_options, SHIFTS, "shifts", value)


def check_channel(value: Any) -> tuple[dict[str, Any], ...]:
    """The operations of a channel, each given as a name or a mapping with `name`, in the form of `Settings` with all
    hyperparameters.

    Raises:
        UserError: wrong shape, an unknown operation, wrong hyperparameters, the same operation twice, or an order in
            which operations cannot follow each other (`bench.channel.operation.ChannelOperation.stage`).
    """
    complete = _check_list(complete_hyper, CHANNELS, "channel", value)
    names = [operation["name"] for operation in complete]
    stages = [getattr(CHANNELS.declaration(name), "stage", "") for name in names]
    for name, stage in zip(names, stages, strict=True):
        if stage not in _STAGES:
            raise UserError(f"channel {name!r}: stage = {stage!r} should be {' or '.join(map(repr, _STAGES))}")
    for (first, stage), (second, following) in itertools.pairwise(zip(names, map(_STAGES.index, stages), strict=True)):
        if following < stage:
            raise UserError(f"channel = {shown(value)}: {second} should come before {first}")
        if following == stage > 0:
            raise UserError(f"channel = {shown(value)}: {first} and {second} cannot both be there; take one out")
    kinds = [CHANNELS.declaration(name) for name in names]
    for name, kind, before in zip(names, kinds, [None, *kinds], strict=False):
        if getattr(kind, "needs_bound", False) and not getattr(before, "bounds", False):
            known = [other for other in CHANNELS.names() if getattr(CHANNELS.declaration(other), "bounds", False)]
            raise UserError(f"channel = {shown(value)}: {name} should come right after {' or '.join(known)}")
    return complete


def _check_list(
    complete: Callable[[Registry[Any], str, dict[str, Any]], tuple[dict[str, Any], Problems]],
    registry: Registry[Any],
    key: str,
    value: Any,
) -> tuple[dict[str, Any], ...]:
    """The entries of a setting that is a list of names or of mappings with `name`, completed."""
    listed: Sequence[Any] = value if isinstance(value, list | tuple) else [None]
    entries = [{"name": entry} if isinstance(entry, str) else entry for entry in listed]
    if not all(isinstance(entry, dict) and isinstance(entry.get("name"), str) for entry in entries):
        raise UserError(f"{key} = {shown(value)} should be a list of names, or of mappings with `name`")
    names = [entry["name"] for entry in entries]
    if len(set(names)) < len(names):
        raise UserError(f"{key} = {shown(value)}: every {registry.kind} should stand there once")
    completed_entries = []
    for entry in entries:
        options, problems = complete(registry, entry["name"], {k: part for k, part in entry.items() if k != "name"})
        if problems:
            raise UserError(next(iter(problems.values())))
        completed_entries.append({"name": entry["name"], **options})
    return tuple(completed_entries)


def check_tests(tests: Iterable[FurtherTest | dict[str, Any]]) -> tuple[FurtherTest, ...]:
    """Further tests with all options: the kinds of corruptions, the options of shifts.

    Raises:
        UserError: an unknown corruption or shift, wrong options, or two tests of one name.
    """
    known = list(KINDS)
    complete = []
    for test in map(FurtherTest.model_validate, tests):
        for kind in test.kinds:
            if kind not in known:
                raise UserError(unknown("corruption", kind, known))
        kinds = (test.kinds or tuple(known)) if test.name == "corrupted" else ()
        shifts = check_shifts(test.shifts) if test.shifts else ()
        complete.append(test.model_copy(update={"kinds": kinds, "shifts": shifts}))
    labels = [label for test in complete for label in test.labels]
    if repeated := [label for label in dict.fromkeys(labels) if labels.count(label) > 1]:
        raise UserError(f"tests: {repeated[0]!r} stands there twice")
    return tuple(complete)


def check_timeline(changes: Iterable[DataChange | dict[str, Any]]) -> tuple[DataChange, ...]:
    """Changes of the data with all options of their shifts.

    Raises:
        UserError: an unknown shift, wrong options, or the same shift twice in a change.
    """
    return tuple(
        change if change.shifts is None else change.model_copy(update={"shifts": check_shifts(change.shifts)})
        for change in map(DataChange.model_validate, changes)
    )


_COMPLETE: dict[str, Callable[[Any], Any]] = {
    "server": check_server,
    "attack": check_attack,
    "shifts": check_shifts,
    "channel": check_channel,
    "tests": check_tests,
    "timeline": check_timeline,
    "public": check_public,
}
"""The one form of each setting that names parts with options, whether an axis, a listed cell or Python gave it."""
_NAMES = ("server", "attack", "shifts", "channel")
"""Those that may be names alone; they are checked with their registry and not by their types."""
