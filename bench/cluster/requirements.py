"""Requirements of a run on a node of a cluster, and the check of a node.

Everything here is a plain value or works with plain values, so that even a node with another version of pFLeague can
read them and report the difference.
"""

import contextlib
import functools
import importlib.metadata
import os
import platform
import shutil
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from bench.cluster.transfer import FilePart, write
from bench.data import Dataset
from bench.errors import UserError
from bench.store import store
from bench.store.provenance import harness_code

if TYPE_CHECKING:
    from collections.abc import Collection

    from bench.settings import Settings

DATA_ROOT = "BENCH_DATA_ROOT"
"""Environment variable with the data folder of a node, where it is not the one of `--data-root`."""

_VERSIONS = ("torch", "torchvision", "numpy")
_DRIVER = "where the command was given"

PREFIX = "pfleague-"
"""First characters of the name of a worker's scratch folder."""

_ABANDONED_SECONDS = 600.0
_HELD = ExitStack()


@dataclass(frozen=True)
class Plugin:
    """A plug-in: its file and the neighbouring modules it imports, as (path relative to its folder, content) pairs."""

    path: str
    files: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True)
class Needs:
    """Requirements of a run on every node.

    Attributes:
        cwd: current directory of the command; relative paths start there.
        versions: result of `versions()` where the command was given.
        harness: result of `harness_code()` there.
        plugins: plug-ins to load.
        code: digests of what the cells use of the user's own (`bench.config.digests.own_code`).
        data: checksums of data sets, by name and options (`bench.federation.cell_data.data_of`).
        files: digests, by path, of the files that cells read beside their data: partitions and weights.
        weights: digests of what models' constructors read (`bench.federation.cell_identity.Identities.constructed`).
        data_root: folder of the data sets.
    """

    cwd: str
    versions: dict[str, str]
    harness: str
    plugins: tuple[Plugin, ...]
    code: dict[tuple[str, str], str]
    data: dict[tuple[str, str], str]
    files: dict[str, str]
    weights: dict[tuple[str, tuple[int, ...], int, str], str]
    data_root: str


def versions() -> dict[str, str]:
    """Return the versions that must be equal on all nodes. The build of torch (CPU, CUDA) may differ."""
    from bench import __version__

    numbers = {"pFLeague": __version__, "Python": ".".join(platform.python_version_tuple()[:2])}
    for package in _VERSIONS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            numbers[package] = importlib.metadata.version(package).partition("+")[0]
    return numbers


def needs_of(cells: "Collection[Settings]", data_root: Path) -> Needs:
    """Collect what cells require on every node, in the versions of the machine where the command was given."""
    from bench.config.digests import content, own_code, used_items
    from bench.federation.cell_data import data_of, read_data
    from bench.federation.cell_identity import Identities
    from bench.plugin import loaded_modules

    data: dict[tuple[str, str], str] = {}
    files: dict[str, str] = {}
    for settings in cells:
        for name, options in data_of(settings):
            if (name, options) not in data:
                data[name, options] = read_data(name, options, data_root).checksum
        for path in (settings.partition_options.get("path"), settings.pretrained):
            if path:
                files[str(path)] = content(Path(path))
    code: dict[tuple[str, str], str] = {}
    identities = Identities(data_root)
    for settings in cells:
        code |= own_code(used_items(settings))
        identities.weights(settings)
    return Needs(
        cwd=str(Path.cwd()),
        versions=versions(),
        harness=harness_code(),
        plugins=tuple(_plugin(name, path) for name, path in loaded_modules()),
        code=code,
        data=data,
        files=files,
        weights=identities.constructed,
        data_root=str(data_root.resolve()),
    )


def _plugin(module: str, path: Path) -> Plugin:
    """A plug-in's files, as they are here."""
    from bench.config.digests import sources

    beside = (file for file in sources(module, path).values() if file.is_relative_to(path.parent))
    files = tuple((file.relative_to(path.parent).as_posix(), file.read_bytes()) for file in beside)
    return Plugin(str(path), files)


def check_node(needs: Needs) -> tuple[str, list[tuple[str, str]]]:
    """Check whether this node can run cells.

    Returns:
        A message that says what is wrong (empty if nothing is), and the data sets that are missing here.
    """
    if os.path.isdir(needs.cwd):
        os.chdir(needs.cwd)
    try:
        _same_versions(needs)
        for plugin in needs.plugins:
            _load(plugin)
        _same_code(needs)
        _same_weights(needs)
        return "", _missing_data(needs)
    except UserError as error:
        return str(error), []


def _same_versions(needs: Needs) -> None:
    present = versions()
    for name, version in needs.versions.items():
        if present.get(name) != version:
            raise UserError(f"{name} is {present.get(name, 'missing')}, and {version} {_DRIVER}")
    if harness_code() != needs.harness:
        place = Path(__file__).parents[2]
        raise UserError(f"pFLeague {present['pFLeague']} in {place} has other source files than {_DRIVER}")


@functools.cache
def _load(plugin: Plugin) -> None:
    """Load a plug-in: from its own path if this node has the same files there, otherwise from a copy."""
    from bench.plugin import load_file

    folder = Path(plugin.path).parent
    if all((folder / name).is_file() for name, _ in plugin.files):
        for name, content in plugin.files:
            if (folder / name).read_bytes() != content:
                raise UserError(f"plug-in {folder / name} is another version than {_DRIVER}")
    else:
        folder = Path(tempfile.mkdtemp(dir=scratch()))
        for name, content in plugin.files:
            write(folder, FilePart(name, 0, content))
    load_file(folder / Path(plugin.path).name)


def _same_code(needs: Needs) -> None:
    from bench.config.digests import code_digest
    from bench.plugin import REGISTRIES

    registries = {registry.kind: registry for registry in REGISTRIES}
    for (kind, name), digest in needs.code.items():
        try:
            same = code_digest(registries[kind], name) == digest
        except UserError:
            raise UserError(f"{kind} {name!r} is not known here: install its package on this node, too") from None
        if not same:
            raise UserError(f"{kind} {name!r} is another version than {_DRIVER}")


def _same_weights(needs: Needs) -> None:
    from bench.federation.cell_identity import read_by_constructor

    for at, digest in needs.weights.items():
        if read_by_constructor(*at) != digest:
            raise UserError(f"model {at[0]!r} starts with other weights than {_DRIVER}: copy the file that it reads")


def _missing_data(needs: Needs) -> list[tuple[str, str]]:
    from bench.config.digests import content
    from bench.federation.cell_data import read_data

    for path, digest in needs.files.items():
        if not Path(path).exists():
            raise UserError(f"{path}, which a cell reads, is not here: copy it to the same place")
        if content(Path(path)) != digest:
            raise UserError(f"{path}, which a cell reads, is another file than {_DRIVER}")
    missing = []
    for (name, options), checksum in needs.data.items():
        try:
            present = read_data(name, options, data_root(needs.data_root)).checksum
        except Exception:  # a loader may raise anything if its files are missing
            missing.append((name, options))
            continue
        if present != checksum:
            raise UserError(f"data set {name!r} has checksum {present} here, and {checksum} {_DRIVER}")
    return missing


def data_root(folder: str) -> Path:
    """Return the data folder of this node."""
    return Path(os.environ.get(DATA_ROOT, folder))


def provide(name: str, options: str, dataset: Dataset) -> None:
    """Receive a data set that is missing on this node. Ray holds it there once for all workers."""
    from bench.federation import cell_data

    # copied because arrays in Ray's memory are read-only, which torch does not support
    cell_data.provide(name, options, replace(dataset, x=dataset.x.copy(), y=dataset.y.copy()))


@functools.cache
def scratch() -> Path:
    """Return a folder for this process alone, and remove the folders that killed processes have left behind."""
    for old in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # it belongs to another user
            if time.time() - old.stat().st_mtime > _ABANDONED_SECONDS and not store.is_locked(old):
                shutil.rmtree(old)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    _HELD.enter_context(store.locked(folder))
    return folder
