"""The identity of a cell: a hash of everything that its result depends on, and of nothing else.

It covers the scientific settings, the data, and the code of the method, of its server rule and selection, and of what
else is the user's own: data sets, partitions, shifts, models, attacks and channel operations; for another package's
model, the package's version. It leaves out the cell's names (label, case) and scores (metrics, select_by), the paths of
its files, and the machine. `RESULT_VERSION` covers everything else in the harness.

Settings and options with their default value are left out, so that a setting which is added later changes no id. The
defaults are pinned by a test for this reason (docs/versions.md).
"""

import contextlib
import importlib.metadata
import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from bench.config.digests import code_digest, content, data_and_models, digest, is_own, method_and_rules
from bench.errors import UserError
from bench.plugin import DATASETS, METHODS, MODELS, PARTITIONS, SELECTIONS, SERVER_RULES, Registry
from bench.settings import DEFAULT_SELECTION, PRESENTATION, RegisteredPart, Settings

RESULT_VERSION = 1
"""Raised by hand when a change of the engine, the data sets or the models changes results."""
FILES = "path", "tokenizer"
"""Options of data sets that name a user's files."""
_RULING = METHODS, SERVER_RULES, SELECTIONS
"""Registries of what decides how a cell trains: the code is in the id, also of what comes with the harness."""
UNVERIFIED = {
    "ag_news": ("ag_news_csv",),
    "camelyon17": ("camelyon17_v1.0",),
    "celeba": ("celeba/data/train", "celeba/data/test", "celeba/data/raw/img_align_celeba"),
    "emnist_writers": ("EMNIST/matlab",),
    "femnist": ("femnist/data/train", "femnist/data/test"),
    "flowers102": ("flowers-102",),
    "gtsrb": ("gtsrb",),
    "har": ("UCI HAR Dataset",),
    "inaturalist2017": ("2017",),
    "iwildcam": ("iwildcam_v2.0",),
    "pamap2": ("PAMAP2_Dataset/Protocol",),
    "sent140": ("sent140/data/train", "sent140/data/test"),
    "shakespeare": ("shakespeare/data/train", "shakespeare/data/test"),
    "tinyimagenet": ("tiny-imagenet-200",),
}
"""Built-in data sets that are read without a comparison of checksums, and the folders under the data root that hold
their files: their samples are part of a cell's id (`bench.federation.cell_identity`), and they are read again when a
file changes (`bench.federation.cell_data`)."""


def cell_id(settings: Settings, data_checksum: str) -> str:
    """Identity of a cell, 16 hex digits.

    Args:
        settings: settings with complete hyperparameters and options, as `bench.config.grid.load_grid` returns them.
        data_checksum: the result of `declared_checksum`, and what only reading the data tells
            (`bench.federation.cell_identity`).

    Raises:
        UserError: the method, its server rule or its selection is unknown or has no source file.
    """
    science = scientific(settings)
    if path := settings.partition_options.get("path"):
        science["partition_options"]["path"] = content(Path(path))
    if settings.pretrained is not None:
        science["pretrained"] = content(Path(settings.pretrained))
    identity = {
        "settings": science,
        "data": data_checksum,
        "code": _code(settings),
        "packages": _packages(settings),
        "version": RESULT_VERSION,
    }
    return digest(json.dumps(identity, sort_keys=True, allow_nan=False))


def scientific(settings: Settings) -> dict[str, Any]:
    """The settings that identify a cell: those of `differing` without names, scores and the paths of data files, whose
    content is hashed. A seed of the partition that is the cell's own is as good as none."""
    science = {key: value for key, value in differing(settings).items() if key not in PRESENTATION}
    if science.get("partition_seed") == settings.seed:
        del science["partition_seed"]
    for key in ("dataset_options", "public"):
        if key in science:
            science[key] = {option: value for option, value in science[key].items() if option not in FILES}
    return science


def differing(settings: Settings) -> dict[str, Any]:
    """The settings that differ from their defaults, in plain values; within a setting, too, only what differs."""
    plain: dict[str, Any] = _differing(settings)
    for key, registry, name in (
        ("hp", METHODS, settings.method),
        ("dataset_options", DATASETS, settings.dataset),
        ("model_options", MODELS, settings.model),
        ("partition_options", PARTITIONS, settings.partition),
    ):
        options = _differing_options(registry, name, plain.pop(key, {}))
        plain |= {key: options} if options else {}
    return plain


def _differing(value: Any) -> Any:
    match value:
        case BaseModel():
            fields = ((key, getattr(value, key), field) for key, field in type(value).model_fields.items())
            plain = {
                key: _differing(part)
                for key, part, field in fields
                if field.is_required() or part != field.get_default(call_default_factory=True)
            }
            if isinstance(value, RegisteredPart):
                plain |= _differing_options(value.registry, value.name, value.options)
            return plain
        case tuple():
            return [_differing(part) for part in value]
    return to_jsonable_python(value)


def _differing_options(registry: Registry[Any], name: str, options: dict[str, Any]) -> dict[str, Any]:
    """The options of a registered part, in plain values, without those that have their default.

    Where the part's code is in the id, all of them stay: an option that is added changes the code anyway, and nobody
    pins the defaults of what is the user's own. So they do where the part is not known here.
    """
    plain: dict[str, Any] = to_jsonable_python(options)
    try:
        if registry in _RULING or is_own(registry, name):
            return plain
    except UserError:
        return plain
    defaults = {
        field.alias or key: to_jsonable_python(field.default)
        for key, field in registry.options(name).model_fields.items()
        if not field.is_required()
    }
    return {key: value for key, value in plain.items() if key not in defaults or value != defaults[key]}


def _code(settings: Settings) -> dict[str, str]:
    """Digests of the code of a cell's method, server rule and selection, and of all else that is the user's own.

    The default selection has none: a selection that is added beside it would change the ids of nearly all cells.
    """
    return {
        f"{registry.kind} {name}": code_digest(registry, name)
        for registry, name in (*method_and_rules(settings), *data_and_models(settings))
        if is_own(registry, name) or (registry in _RULING and (registry, name) != (SELECTIONS, DEFAULT_SELECTION))
    }


def _packages(settings: Settings) -> dict[str, str]:
    """Versions of the packages that a cell's models named `PACKAGE/NAME` are from, without what tells builds apart."""
    versions = {}
    for name in (settings.model, *settings.architectures):
        if "/" in name and (package := MODELS.package_of(name)):
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                versions[package] = importlib.metadata.version(package).partition("+")[0]
    return versions


def description(settings: Settings) -> str:
    """Text of what settings say of a cell, without names, scores and the paths of files: equal for equal cells.

    Neither files nor code are read, so that settings from somebody else can be compared.
    """
    science = scientific(settings)
    if "path" in settings.partition_options:
        science["partition_options"]["path"] = "a file"
    if "pretrained" in science:
        science["pretrained"] = "a file"
    return json.dumps(science, sort_keys=True)


def declared_checksum(settings: Settings) -> str:
    """Checksum of a cell's data, computed without loading them.

    A data set with an option `path` is the user's own: the checksum is that of the contents of its files (of names and
    contents, for a folder), or of a path if there is no such file. For all other data sets it is the name: their
    loaders verify the files that they read, but for those of `UNVERIFIED`.
    """
    sets = [(settings.dataset, settings.dataset_options)]
    if settings.public is not None:
        sets.append((settings.public.name, settings.public.options))
    paths = [(name, [options[option] for option in FILES if options.get(option)]) for name, options in sets]
    return " ".join(" ".join(content(Path(path)) for path in files) or f"declared:{name}" for name, files in paths)
