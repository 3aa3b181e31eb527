"""The identity of a cell: a hash of everything that its result depends on, and of nothing else.

It covers the scientific settings, the declared data, and the code of the method, of its server rule and selection, and
of the user's own data sets, partitions, shifts, models, attacks and channel operations; for another package's model,
the package's version. It leaves out the cell's names (label, case) and scores (metrics, select_by), the paths of its
files, and the machine.
`RESULT_VERSION` covers the engine, the libraries and everything else in the harness.
"""

import contextlib
import functools
import importlib.metadata
import inspect
import json
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.lib import format as npy

from bench.config.code_digests import code_digest, is_own, own_code
from bench.config.file_digests import content, digest, version
from bench.config.model_marks import model_marks
from bench.plugin import DATASETS, METHODS, MODELS, SELECTIONS, SERVER_RULES
from bench.settings import BY_GROUPS, DEFAULT_SELECTION, PRESENTATION, Settings, noise_of

RESULT_VERSION = 3
"""Raised by hand when a change of the engine, the data sets or the models changes results."""
_FROZEN_VERSION = 2
"""The version of results with `frozen` layers: since 2, these do not travel, and their running statistics stay."""
_PRECISION_VERSIONS = {"bf16": 2}  # since 2, models are evaluated in bf16, too
"""Versions of one precision's results, raised when a change affects no other cells; these keep their ids."""

_OWN_METHOD = "a method of a user's"
_TIMELINE_VERSIONS = {"fedah": 2, "metafed": 2, "pefll": 2, _OWN_METHOD: 2}
"""Versions of methods' results with a `timeline`. Since 2, what a method trains for an evaluation before a change is
planned anew after it."""
_LOCAL_VERSIONS = {"ccvr": 2, "fedadmm": 2, "feddrift": 2, "fedex_lora": 2, "metafed": 2, "pfedsim": 2, _OWN_METHOD: 2}
"""Versions of methods' results with `batchnorm: local`. Since 2, running statistics stay with a client also where its
model is sent under another name than it is received, or in an exchange."""
_WHOLE_VERSIONS = {"elastic": 2, "fedas": 2, "pefll": 2, "pgfed": 2, "pgfed_ce": 2, "pgfedmo": 2, _OWN_METHOD: 2}
"""Versions of methods' results with models that may have BatchNorm. Since 2, a pass over all samples with frozen
statistics counts a last batch of one sample, too."""
_WITHOUT_BATCHNORM = {"logistic", "mlp", "cnn", "lenet", "spfl_cnn", "comet_cnn"}
_TOP_K_VERSION = 2
"""The version of results with `top_k`. Since 2, rounding does not choose between numbers of equal size."""
_PRIVACY_VERSION = 2
"""The version of results with noise for privacy. Since 2, who is in a release is drawn as it is counted, and a noisy
sum is divided by a number that does not depend on who is there."""
_LEAP_VERSION = 2
"""The version of results of LGA and PLGA with late clients and a `timeline`. Since 2, a client that left while late
begins anew when it comes back."""

NORMALISED = "normalised"
"""Part of the checksum of data with floating inputs: since it is, they are normalised, as bytes always were."""
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
_FLOATING = ("har", "motion", "pamap2", "watch")
"""Built-in data sets with floating inputs, besides `npz`, which may have some, and `synthetic`, whose inputs stay."""

_ABSENT: dict[str, Any] = {
    "optimizer": {"name": "sgd"},
    "pretrained": None,
    "frozen": [],
    "adapters": None,
    "selection": DEFAULT_SELECTION,
    "shifts": [],
    "channel": [],
    "timeline": [],
    "attack": None,
    "dp_sgd": None,
    "normalise": None,
    "new_client_start": "method",
}
"""Settings added later, each with the value that means the old behaviour: it is left out, so that cells from before the
setting existed keep their ids."""
_ABSENT_OPTIONS: dict[str, dict[str, Any]] = {
    "csv": {"part_column": "", "subject_column": ""},
    "har": {"recordings": False},
    "image_folder": {"groups": False, "subject": ""},
    "parquet": {"part_column": "", "subject_column": ""},
}
"""The same for options of data sets."""
_REDRAWN = {partition: {"redraw": True} for partition in BY_GROUPS}
"""The same for options of partitions. Their effect on who takes part, which only the data tell, is in the id instead
(`bench.federation.cell_identity`)."""


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
    if path := science["partition_options"].get("path"):
        science["partition_options"]["path"] = content(Path(path))
    if settings.pretrained is not None:
        science["pretrained"] = content(Path(settings.pretrained))
    identity = {
        "settings": science,
        "data": data_checksum,
        "code": code_digest(METHODS, settings.method),
        "version": RESULT_VERSION,
    }
    if settings.server is not None:
        identity["rule"] = code_digest(SERVER_RULES, settings.server["name"])
    if settings.selection != DEFAULT_SELECTION:
        identity["selection"] = code_digest(SELECTIONS, settings.selection)
    if digests := own_code(settings):
        identity["own"] = digests
    if packages := _packages(settings):
        identity["packages"] = packages
    if marks := model_marks(settings):
        identity["model_marks"] = marks
    if settings.precision in _PRECISION_VERSIONS:
        identity["precision_version"] = _PRECISION_VERSIONS[settings.precision]
    if settings.frozen:
        identity["frozen_version"] = _FROZEN_VERSION
    method = _OWN_METHOD if is_own(METHODS, settings.method) else settings.method
    if settings.timeline and method in _TIMELINE_VERSIONS:
        identity["timeline_version"] = _TIMELINE_VERSIONS[method]
    if settings.batchnorm == "local" and method in _LOCAL_VERSIONS:
        identity["local_version"] = _LOCAL_VERSIONS[method]
    if method in _WHOLE_VERSIONS and not _WITHOUT_BATCHNORM.issuperset({settings.model, *settings.architectures}):
        identity["whole_version"] = _WHOLE_VERSIONS[method]
    if any(operation["name"] == "top_k" for operation in settings.channel):
        identity["top_k_version"] = _TOP_K_VERSION
    if noise_of(settings.channel) or settings.dp_sgd is not None:
        identity["privacy_version"] = _PRIVACY_VERSION
    if settings.timeline and settings.stragglers and _leaps(settings.hp):
        identity["leap_version"] = _LEAP_VERSION
    return digest(json.dumps(identity, sort_keys=True, allow_nan=False))


def scientific(settings: Settings) -> dict[str, Any]:
    """The settings that identify a cell, in plain values, with the paths of files that others hash.

    A setting that was added later is there only where its value is another than the one that means the old behaviour.
    """
    science = settings.model_dump(mode="json", exclude=set(PRESENTATION))
    if science["partition_seed"] is None:
        science["partition_seed"] = science["seed"]
    _leave_out(science, _ABSENT)
    if "timeline" in science:  # kinds of changes that are not there, or that came later, make no other cell
        science["timeline"] = [
            {key: value for key, value in change.items() if value is not None} for change in science["timeline"]
        ]
    _drop_unidentifying(science["dataset"], science["dataset_options"])
    if science["public"]:
        _drop_unidentifying(science["public"]["name"], science["public"])
    for option in _REDRAWN.get(science["partition"], ()):
        science["partition_options"].pop(option, None)
    if science["partition"] == "file" and settings.dataset_options.get("path"):
        science["partition_options"]["counts"] = (
            "rows of the user's file"  # formerly, positions of samples after the test part was cut off
        )
    return science


def partition_options(settings: Settings) -> dict[str, Any]:
    """The options of a cell's partition; one that was added later than the cell has the value of the old behaviour."""
    return {**_REDRAWN.get(settings.partition, {}), **settings.partition_options}


def _leaps(hp: Mapping[str, Any]) -> bool:
    """Whether these are hyperparameters of LGA's family by which a late client's earlier start counts."""
    return hp.get("late") == "leap" or ("late" in hp and bool(hp.get("interpolate")))


def _packages(settings: Settings) -> dict[str, str]:
    """Versions of the packages that a cell's models named `PACKAGE/NAME` are from, without what tells builds apart."""
    versions = {}
    for name in (settings.model, *settings.architectures):
        if "/" in name and (package := MODELS.package_of(name)):
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                versions[package] = importlib.metadata.version(package).partition("+")[0]
    return versions


def may_be_same(first: Settings, other: Settings) -> bool:
    """Whether two settings may be those of one cell: all is the same but for names, scores and the paths of files.

    Neither files nor code are read, so that settings from somebody else can be compared.
    """
    return first == other or description(first) == description(other)


def description(settings: Settings) -> str:
    """Text of what settings say of a cell, without names, scores and the paths of files: equal for equal cells."""
    science = scientific(settings)
    if "path" in science["partition_options"]:
        science["partition_options"]["path"] = "a file"
    if "pretrained" in science:
        science["pretrained"] = "a file"
    return json.dumps(science, sort_keys=True)


def _drop_unidentifying(dataset: str, options: dict[str, Any]) -> None:
    """Remove the options of a data set that must not change a cell's identity."""
    options.pop("path", None)  # the checksum covers the file's content
    _leave_out(options, _ABSENT_OPTIONS.get(dataset, {}))


def _leave_out(values: dict[str, Any], absent: Mapping[str, Any]) -> None:
    for name, value in absent.items():
        if name in values and values[name] == value:
            del values[name]


def declared_checksum(settings: Settings) -> str:
    """Checksum of a cell's data, computed without loading them.

    A data set with an option `path` is the user's own: the checksum is that of the file's content (of names and
    contents, for a folder), or of the path if there is no such file. For all other data sets it is the name: their
    loaders verify the files that they read, but for those of `UNVERIFIED`. `NORMALISED` follows where inputs are
    floating.
    """
    checksums = [_declared(settings.dataset, settings.dataset_options)]
    if settings.public is not None:
        checksums.append(_declared(settings.public.name, settings.public.options))
    return " ".join(checksums)


def _declared(name: str, options: dict[str, Any]) -> str:
    path = options.get("path")
    if not path:
        checksum, reading, floating = f"declared:{name}", "", name in _FLOATING
    else:
        file, checksum = Path(path), content(Path(path))
        reading = _reading(name, json.dumps(options, sort_keys=True), checksum)
        floating = name in _FLOATING or (name == "npz" and file.is_file() and _holds_floats(*version(file)))
    normalised = NORMALISED if floating and changes_inputs(options.get("mean"), options.get("std")) else ""
    return " ".join(filter(None, (checksum, normalised, reading)))


@functools.lru_cache(maxsize=1000)
def _reading(name: str, options: str, version_digest: str) -> str:
    """Name what our loader reads in a user's file otherwise than its first version did, by its module's `reading`.

    Cells of such files get new ids. The text is empty for a file that cannot be read: loading it says why. `options`
    are JSON; `version_digest` identifies the file's version in the cache.
    """
    reading = getattr(inspect.getmodule(DATASETS.get(name)), "reading", None)
    if reading is None or is_own(DATASETS, name):
        return ""
    with contextlib.suppress(Exception):
        return str(reading(json.loads(options)))
    return ""


def changes_inputs(mean: Sequence[float] | None, std: Sequence[float] | None) -> bool:
    """Whether normalising with this mean and standard deviation changes inputs; None: the data's own."""
    return mean is None or std is None or any(mean) or any(deviation != 1 for deviation in std)


@functools.lru_cache
def _holds_floats(path: Path, mtime: int, size: int) -> bool:
    """Whether the samples of an .npz file are floating numbers, by the headers of its arrays; no, if it is damaged."""
    try:
        with zipfile.ZipFile(path) as archive:
            for name in {"train_images.npy", "train_series.npy"}.intersection(archive.namelist()):
                with archive.open(name) as array:
                    short = npy.read_magic(array) == (1, 0)
                    header = npy.read_array_header_1_0(array) if short else npy.read_array_header_2_0(array)
                    return bool(header[2].kind == "f")
    except (OSError, ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error):
        pass  # its loader says what is wrong
    return False
