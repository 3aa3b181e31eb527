"""Reads and checks the entries of a grid file: common settings, axes, cases, varied settings, and `--set`."""

import copy
import json
from collections import Counter
from dataclasses import dataclass
from typing import Any

from bench.config.validation import check_setting, complete, shown
from bench.config.yaml_lines import Document, Path, parse_assignment
from bench.errors import UserError, did_you_mean
from bench.plugin import DATASETS, METHODS, Registry
from bench.settings import Settings, data_name

Layer = dict[str, tuple[Any, Path]]  # by setting: its value, and the value's place in the document

MAX_NAME = 80
AXES = {"methods": "method", "datasets": "dataset", "alphas": "alpha", "seeds": "seed"}
TEXTS = ("name", "description", "published", "reference")
GRID_KEYS = [*TEXTS, "plugins", *AXES, "vary", "cases"]
SET_ELSEWHERE = {
    "method": "use the axis `methods`",
    "dataset": "use the axis `datasets`",
    "label": "write it into an entry of `methods`",
    "case": "use `cases`, each with a `name`",
    "hp": "write `scd.tau: 0.2`, or `tau: 0.2` into an entry of `methods`",
    "methods": "it is an axis, at the top of the grid",
    "datasets": "it is an axis, at the top of the grid",
    "dataset_options": "write them into an entry of `datasets`",
    "set": "write the settings themselves, without `set`",
}


@dataclass(frozen=True)
class GridEntry:
    """One entry of `methods`, `datasets` or `cases`.

    Attributes:
        name: name of the method or data set; empty for a case.
        text: its name in tables; for a data set or case, the text that distinguishes it from the others.
        path: its place in the document.
        own: options of the data set.
        settings: the settings that it sets; of a method also its hyperparameters, as `method.hyperparameter`.
        cases: a data set's cases, which replace the grid's.
    """

    name: str
    text: str
    path: Path
    own: Layer
    settings: Layer
    cases: tuple["GridEntry", ...] = ()


NOTHING = GridEntry("", "", (), {}, {})


@dataclass(frozen=True)
class Choice:
    """One value of a varied setting.

    Attributes:
        key: the setting, or `method.hyperparameter`.
        value: its checked value.
        path: its place in the document.
        first: whether it is the first value of its axis.
        text: its name in tables, such as `lr=0.1`; empty for an axis that has a column of its own.
    """

    key: str
    value: Any
    path: Path
    first: bool
    text: str = ""

    def concerns(self, method: str) -> bool:
        """Whether the setting affects cells of this method."""
        return "." not in self.key or self.key.startswith(f"{method}.")


@dataclass(frozen=True)
class Plan:
    """A grid file before its expansion; an axis that is not given is empty, except `datasets`, which has a default."""

    common: Layer
    datasets: list[GridEntry]
    cases: list[GridEntry]
    vary: list[list[Choice]]
    alphas: list[Choice]
    methods: list[GridEntry]
    seeds: list[Choice]

    @property
    def all_cases(self) -> list[GridEntry]:
        """The grid's cases and the cases of its data sets."""
        return [*self.cases, *(case for dataset in self.datasets for case in dataset.cases)]

    @property
    def layers(self) -> list[Layer]:
        """The settings of every place but axes."""
        entries = [*self.datasets, *self.all_cases, *self.methods]
        return [self.common, *(entry.settings for entry in entries)]


def read_plan(document: Document) -> Plan:
    """Read the axes and settings of a grid; problems are noted in the document."""
    data = document.data
    for axis in AXES:
        refuse_both(document, axis)
    for axis, key in (("methods", "method"), ("datasets", "dataset")):
        if key in data and axis not in data:
            document.rename(key, axis)
            data[axis] = [data[axis]]
    data.setdefault("datasets", [Settings.model_fields["dataset"].default])
    if "methods" not in data:
        document.complain((), "the grid has no methods; add for instance `methods: [fedavg, local]`")
    common = {key: value for key, value in data.items() if key not in (*GRID_KEYS, "method", "dataset")}
    plan = Plan(
        common=_layer(document, common, (), GRID_KEYS),
        datasets=_entries(document, "datasets", DATASETS),
        cases=_cases(document, document.data, ()),
        vary=_vary(document),
        alphas=read_scalars(document, "alphas"),
        methods=_entries(document, "methods", METHODS),
        seeds=read_scalars(document, "seeds"),
    )
    _refuse_repeats(document, "the label", [(entry.text, entry.path) for entry in plan.methods])
    sets = [(f"{dataset.name} {dataset.text}".strip(), dataset.path) for dataset in plan.datasets]
    _refuse_repeats(document, "the data set", sets)
    _refuse_shared_names(document, plan.datasets)
    for cases in (plan.cases, *(dataset.cases for dataset in plan.datasets)):
        _refuse_repeats(document, "the case", [(entry.text, entry.path) for entry in cases])
        for entry in cases:  # reports find a cell's case in the text that has the data set's name, too
            if entry.text and entry.text in {dataset.text or dataset.name for dataset in plan.datasets}:
                document.complain(entry.path, f"the case {shown(entry.text)} has the name of a data set")
    for choices in plan.vary:
        _refuse_repeats(document, "the value", [(choice.value, choice.path) for choice in choices])
    _refuse_settings_of_axes(document, plan)
    _refuse_settings_of_cases(document, plan)
    _refuse_settings_of_absent_methods(document, plan)
    return plan


def name_problem(name: Any) -> str:
    """The problem of a name that is to be used in tables and file names; empty if there is none."""
    if not isinstance(name, str):
        return "should be text"
    if not 1 <= len(name) <= MAX_NAME:
        return f"has {len(name)} characters; it should have 1 to {MAX_NAME}"
    if not name.isprintable() or "/" in name or "\\" in name:
        return "has a line break, a control character or a path separator"
    if name != name.strip() or name.startswith("."):
        return "should not start with a dot, nor start or end with a space"
    return ""


def _layer(document: Document, data: Any, path: Path, others: list[str]) -> Layer:
    """The settings in a mapping; `others` are further keys that are allowed there (for suggestions in messages)."""
    layer: Layer = {}
    if not isinstance(data, dict):
        document.complain(path, f"{shown(data)} should be a mapping of settings")
        return layer
    for key, value in data.items():
        place = (*path, key)
        if key in SET_ELSEWHERE:
            document.complain(place, f"{key!r} cannot stand here: {SET_ELSEWHERE[key]}")
        elif "." not in key and key not in Settings.model_fields:
            near = did_you_mean(key, [*(Settings.model_fields.keys() - SET_ELSEWHERE), *others])
            document.complain(place, f"unknown key {key!r}.{near or ' `bench show quickstart` lists all settings.'}")
        else:
            with document.noting(place):
                layer[key] = (check_setting(key, value), place)
    return layer


def _items(document: Document, holder: dict[str, Any], path: Path, example: str) -> list[tuple[Any, Path]]:
    """The values of the list at `path`, if `holder` has it, with their places; an empty list is a problem."""
    key = str(path[-1])
    if key not in holder:
        return []
    values = holder[key]
    if not isinstance(values, list) or not values:
        problem = "is empty; write" if values == [] else "should be a list,"
        document.complain(path, f"{key} = {shown(values)} {problem} for instance {example}")
        return []
    places = [(value, (*path, i)) for i, value in enumerate(values)]
    return [(value, place) for value, place in places if place not in document.merged]


def _entries(document: Document, axis: str, registry: Registry[Any]) -> list[GridEntry]:
    """The entries of the axis `methods` or `datasets`."""
    example = "[fedavg, {name: scd, tau: 0.4}]" if axis == "methods" else "[digits]"
    written: list[tuple[dict[str, Any], Path]] = []
    for value, path in _items(document, document.data, (axis,), example):
        entry = {"name": value} if isinstance(value, str) else value
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            document.complain(path, f"{shown(value)} should be a name, or a mapping with `name`, as in {example}")
            continue
        with document.noting((*path, "name")):
            registry.declaration(entry["name"])
            written.append((entry, path))
    names = [entry["name"] for entry, _ in written]
    if axis == "methods":
        return [_method(document, entry, path, names.count(entry["name"]) > 1) for entry, path in written]
    labels = [(entry["name"], entry.get("label")) for entry, _ in written]
    entries = []
    for (entry, path), name, label in zip(written, names, labels, strict=True):
        # the text that tells it from others of its name: the label, which is in tables already, or all that it says
        unique = labels.count(label) == 1 and bool(label[1])
        text = str(label[1]) if unique else _spelled_out(entry)
        entries.append(_dataset(document, entry, path, text if names.count(name) > 1 else ""))
    return entries


def _method(document: Document, data: dict[str, Any], path: Path, several: bool) -> GridEntry:
    name = data["name"]
    settings = _layer(document, data.get("set", {}), (*path, "set"), [])
    for key in settings:
        if "." in key:
            document.complain((*path, "set", key), f"{key!r} cannot stand here: write hyperparameters beside `name`")
    for key in data.keys() - {"name", "label", "set"}:
        setting = key if key == "server" else f"{name}.{key}"
        with document.noting((*path, key)):
            settings[setting] = (check_setting(setting, data[key]), (*path, key))
    label = data.get("label", f"{name} {_spelled_out(data)}".strip() if several else name)
    if problem := name_problem(label):
        document.complain((*path, "label"), f"the label {shown(label)} {problem}")
    return GridEntry(name, str(label), path, {}, settings)


def _dataset(document: Document, data: dict[str, Any], path: Path, text: str) -> GridEntry:
    # `name` selects the data set here, so the data set's own option `name` is called `label`
    entries = {("name" if key == "label" else key): data[key] for key in data if key not in ("name", "set", "cases")}
    options, problems = complete(DATASETS, data["name"], entries)
    for key, problem in problems.items():
        document.complain((*path, "label" if key == "name" else key) if key else path, problem)
    layer = {key: (value, (*path, key)) for key, value in options.items()}
    settings = _layer(document, data.get("set", {}), (*path, "set"), [])
    return GridEntry(data["name"], text, path, layer, settings, tuple(_cases(document, data, path)))


def _cases(document: Document, data: dict[str, Any], where: Path) -> list[GridEntry]:
    """The entries of `cases` in the grid, or in one of its data sets."""
    entries = []
    example = "[{clients: 10, alpha: 1}, {clients: 100, alpha: 0.1}]"
    for value, path in _items(document, data, (*where, "cases"), example):
        if not isinstance(value, dict):
            document.complain(path, f"{shown(value)} should be a mapping of settings")
            continue
        name = value.get("name", _spelled_out(value))
        if problem := name_problem(name):
            document.complain((*path, "name"), f"the name {shown(name)} of a case {problem}")
        settings = {key: part for key, part in value.items() if key != "name"}
        entries.append(GridEntry("", str(name), path, {}, _layer(document, settings, path, ["name"])))
    return entries


def _vary(document: Document) -> list[list[Choice]]:
    data = document.data.get("vary", {})
    if not isinstance(data, dict):
        document.complain(("vary",), f"vary = {shown(data)} should be a mapping, for instance {{scd.tau: [0.1, 0.2]}}")
        return []
    axes = []
    for key in data:
        values, texts = [], []
        for written, _ in _items(document, data, ("vary", key), "[0.1, 0.2]"):
            # each value is read as a separate layer, so that keys and values get the same checks as everywhere
            for value, _ in _layer(document, {key: written}, ("vary",), []).values():
                values.append(value)
                # mappings and lists as the user wrote them, because their defaults would fill the text
                texts.append(setting_name(key, written if isinstance(value, dict | list) else value))
        # with numbers, so that cells of different values are never taken for seeds of one
        named = enumerate(zip(values, numbered(texts), strict=True))
        axes.append([Choice(key, value, ("vary", key), first=i == 0, text=text) for i, (value, text) in named])
    return axes


def refuse_both(document: Document, axis: str) -> None:
    """Complain if a grid has an axis and also the one setting that it varies."""
    if axis in document.data and AXES[axis] in document.data:
        document.complain((AXES[axis],), f"{AXES[axis]!r} and {axis!r} are both given; keep one of them")


def read_scalars(document: Document, axis: str) -> list[Choice]:
    """The values of the axis `alphas` or `seeds`; those that are wrong or given twice are noted."""
    key, choices = AXES[axis], []
    values = _items(document, document.data, (axis,), "[0, 1, 2]" if axis == "seeds" else "[1, 0.1]")
    for i, (value, path) in enumerate(values):
        with document.noting(path):
            choices.append(Choice(key, check_setting(key, value), path, first=i == 0))
    _refuse_repeats(document, "the value", [(choice.value, choice.path) for choice in choices])
    return choices


def _refuse_repeats(document: Document, what: str, values: list[tuple[Any, Path]]) -> None:
    texts: set[str] = set()
    for value, path in values:
        text = json.dumps(value)
        if text in texts:
            document.complain(path, f"{what} {shown(value)} is given twice: the cells could not be told apart")
        texts.add(text)


def _refuse_shared_names(document: Document, datasets: list[GridEntry]) -> None:
    """Complain if two kinds of data set have one name in tables, because tables would take them for the same data."""
    kinds: dict[str, str] = {}
    for entry in datasets:
        name = data_name(entry.name, {key: value for key, (value, _) in entry.own.items()})
        if kinds.setdefault(name, entry.name) != entry.name:
            both = f"this {entry.name} and {kinds[name]} have one name in tables"
            document.complain(entry.path, f"{both}, {shown(name)}; give another `label`")


def _refuse_settings_of_axes(document: Document, plan: Plan) -> None:
    """Complain if a setting that an axis varies is also set elsewhere, because one of the two would have no effect."""
    axes = {choices[0].key for choices in [*plan.vary, plan.alphas, plan.seeds] if choices}
    if plan.alphas and any(choices[0].key == "alpha" for choices in plan.vary if choices):
        document.complain(("vary", "alpha"), "'alpha' is varied by `alphas` already")
    for layer in plan.layers:
        for key in axes & layer.keys():
            document.complain(layer[key][1], f"{key!r} is varied by an axis of this grid; do not set it here too")


def _refuse_settings_of_cases(document: Document, plan: Plan) -> None:
    """Complain if a method's entry sets what differs between cases, because their columns would say a false value.

    Entries of the same data are cases, too. What cases have in common it may set: it is then stronger, as everywhere.
    """
    of_data: dict[str, list[GridEntry]] = {}
    for dataset in plan.datasets:
        options = {key: value for key, (value, _) in dataset.own.items()}
        of_data.setdefault(json.dumps([dataset.name, options]), []).append(dataset)
    groups = [plan.cases, *(dataset.cases for dataset in plan.datasets), *of_data.values()]
    for entry in plan.methods:
        for key, (_, path) in entry.settings.items():
            values = [[case.settings.get(key, ())[:1] for case in cases] for cases in groups]
            if any(value != cases[0] for cases in values for value in cases):
                document.complain(path, f"{key!r} differs between the cases of this grid; do not set it here too")


def _refuse_settings_of_absent_methods(document: Document, plan: Plan) -> None:
    """Complain about hyperparameters of methods that the grid does not have, because they would have no effect.

    If `--set` chose the methods, the file may still have hyperparameters of its other methods.
    """
    chosen = document.overridden("methods") or document.overridden("method")
    present = {entry.name for entry in plan.methods}
    paths = {key: path for layer in plan.layers for key, (_, path) in layer.items()}
    paths |= {choice.key: ("vary", choice.key) for choices in plan.vary for choice in choices}
    for key, path in paths.items():
        method, dot, _ = key.partition(".")
        if dot and method not in present and (not chosen or document.overridden(str(path[0]))):
            document.complain(path, f"{key!r} does nothing: no entry of {method!r} in this grid")


def _spelled_out(data: dict[str, Any]) -> str:
    """An entry's options and settings as text, such as `key=value`, without its name and label."""
    inner = data.get("set") if isinstance(data.get("set"), dict) else {}
    texts = {key: value for key, value in data.items() if key not in ("name", "label", "set", "cases")} | (inner or {})
    return " ".join(setting_name(key, value) for key, value in texts.items())


def setting_name(key: str, value: Any) -> str:
    """A setting in the name of a case or label: `trimmed mean 0.2` for parts by name, else `lr=0.1`; JSON is cut."""
    parts = value if isinstance(value, list) else [value]
    if parts and all(isinstance(part, dict) and isinstance(part.get("name"), str) for part in parts):
        return " + ".join(map(part_name, parts))
    return f"{key}={value if isinstance(value, str) else shown(value)}"


def part_name(part: dict[str, Any]) -> str:
    """A server rule, an attack or an operation by its name; a single option needs no name of its own."""
    options = {key: value for key, value in part.items() if key != "name"}
    texts = [shown(value) if len(options) == 1 else f"{key}={shown(value)}" for key, value in options.items()]
    return " ".join([part["name"].replace("_", " "), *texts])


def numbered(texts: list[str]) -> list[str]:
    """Texts with the number of the place behind those that stand there more than once, e.g. `lr=0.1 #2`."""
    counts = Counter(texts)
    return [f"{text} #{i}" if counts[text] > 1 else text for i, text in enumerate(texts, 1)]


def override(document: Document, text: str) -> None:
    """Set `key=value` at the top level and remove the key everywhere else in the document.

    Entries of a list that differed in nothing else become one, because they are the same cells now.

    Raises:
        UserError: the text is no `key=value`, its value is not valid YAML, or the key was set before.
    """
    key, value = parse_assignment(text, "rounds=5")
    singular = AXES.get(key, key)
    names = (singular, *(many for many, singular_name in AXES.items() if singular_name == singular))
    if before := [name for name in names if document.overridden(name)]:
        raise UserError(f"--set {text}: --set {before[0]}=... sets the same key: give it once")
    if key not in TEXTS:
        for name in names:
            document.data.pop(name, None)
        if isinstance(vary := document.data.get("vary"), dict) and key != "vary":
            vary.pop(singular, None)
        for section in {"cases", "datasets", "methods", "cells"} - {key}:
            _strip(document, document.data, section, (), singular)
    document.put(key, value, f"--set {key}")


def _strip(document: Document, holder: dict[str, Any], section: str, above: Path, key: str) -> None:
    """Remove a key from the entries of a section, and leave out the entries that then are equal to an earlier one."""
    entries = holder.get(section)
    if not isinstance(entries, list):
        return
    before = copy.deepcopy(entries)
    for i, entry in enumerate(entries):
        if isinstance(entry, dict):
            _remove(entry, section, key)
            if section == "datasets":
                _strip(document, entry, "cases", (section, i), key)
    if entries == before:
        return
    named = [{"name": entry} if isinstance(entry, str) else entry for entry in entries]
    plain = [_without_name(entry) if section == "cases" else entry for entry in named]
    document.merged |= {(*above, section, i) for i, entry in enumerate(plain) if entry in plain[:i]}
    if section == "cases":
        entries[:] = [entry if entry != {} else {"name": "default"} for entry in entries]
        if not any(plain):  # nothing is left that a case could say
            del holder[section]


def _remove(entry: dict[str, Any], section: str, key: str) -> None:
    """Remove a key from an entry, and its `set` if that gets empty."""
    method, _, hyperparameter = key.partition(".")
    if section in ("cases", "cells") or (section, key) == ("methods", "server"):
        entry.pop(key, None)
    if section == "methods" and entry.get("name") == method:
        entry.pop(hyperparameter, None)
    inner = entry.get("set")
    if isinstance(inner, dict) and key in inner:
        del inner[key]
        if not inner:
            del entry["set"]


def _without_name(entry: Any) -> Any:
    return {key: value for key, value in entry.items() if key != "name"} if isinstance(entry, dict) else entry
