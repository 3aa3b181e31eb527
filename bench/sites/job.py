"""A job: what server and sites are told of a cell, and which cells can be one."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bench import __version__
from bench.config.digests import code_digest, digest
from bench.config.identity import RESULT_VERSION, scientific
from bench.data import Array, Dataset, Partition
from bench.errors import UserError
from bench.federation.cell_data import apply_shifts, load_dataset, load_partition, normalised
from bench.federation.federation import Federation
from bench.federation.setup import make_method
from bench.method import Everyone
from bench.places import check_folder
from bench.plugin import METHODS, SERVER_RULES
from bench.settings import Executor, Settings
from bench.sites.forms import Forms
from bench.sites.messages import PROTOCOL, Identity
from bench.store import inside

JOB = "job.json"
"""File of a job's folder."""

SiteSamples = Mapping[str, Array]
"""A site's samples, as the cell's data set has them: `x`, `y` of training, perhaps `x_validation`, `y_validation`."""

PARTS = ("x", "y", "x_validation", "y_validation")

_DATA = ("dataset", "dataset_options", "partition", "partition_options", "shifts", "alpha", "partition_seed")
"""Settings that say which samples a simulation has; those of a site are its own."""


class DataFacts(BaseModel):
    """Facts that the sites' samples have in common.

    Attributes:
        name, classes: of the data set and its classes.
        shape, dtype: of one sample as it is stored.
        num_classes: number of classes.
        mean, std: per channel, as `bench.data.Dataset` has them.
        vocabulary, padding: number of tokens, 0 if samples are not tokens; and the token after the end of a text.
        indicators: channels of 0 and 1.
        features: names of the channels; may be empty.
        table: how rows of a table become samples, as `bench.data.Dataset` has it; None for other data.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    shape: tuple[Annotated[int, Field(ge=1, le=2**31)], ...]
    dtype: str
    num_classes: int = Field(ge=1, le=2**31)
    mean: tuple[float, ...]
    std: tuple[float, ...]
    vocabulary: int = 0
    padding: int = 0
    indicators: tuple[int, ...] = ()
    classes: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    table: dict[str, Any] | None = None

    @classmethod
    def of(cls, dataset: Dataset) -> "DataFacts":
        """The facts of a data set."""
        same = {name: getattr(dataset, name) for name in cls.model_fields if name not in ("shape", "dtype")}
        return cls(shape=tuple(dataset.x.shape[1:]), dtype=str(dataset.x.dtype), **same)

    def dataset(self, x: Array, y: Array) -> Dataset:
        """A data set of samples that are all in its training part.

        Raises:
            UserError: they are of another shape or type, are not finite, a channel of 0 and 1 has other values, or a
                label is no class.
        """
        x, y = np.asarray(x), np.asarray(y)
        if (x.shape[1:], str(x.dtype)) != (self.shape, self.dtype):
            raise UserError(
                f"samples of {x.dtype} {list(x.shape[1:])}, and the job has {self.dtype} {list(self.shape)}: convert "
                "them where they are loaded"
            )
        if x.dtype.kind == "f" and not np.isfinite(x).all():
            raise UserError("samples hold numbers that are not finite: fill or leave out gaps where they are loaded")
        for channel in self.indicators:
            if not np.isin(x[:, channel], (0, 1)).all():
                name = self.features[channel] if self.features else str(channel)
                raise UserError(
                    f"column {channel} of `x`, {name}, should be 0 or 1, and is not: the columns are, in this order, "
                    f"{', '.join(self.features) or 'those of the job'}"
                )
        y = y.astype(np.int64) if y.dtype.kind in "iu" else y
        same = {name: value for name, value in self if name not in ("shape", "dtype")}
        return Dataset(x=x, y=y, n_train=len(x), checksum="", **same)


def samples_digest(samples: SiteSamples) -> str:
    """Hex digest of a site's samples and labels, in their order."""
    hashed = hashlib.blake2b(digest_size=16)
    for name in PARTS:
        if name in samples:
            array = np.ascontiguousarray(samples[name])
            hashed.update(f"{name} {array.dtype} {array.shape} ".encode() + array.tobytes())
    return hashed.hexdigest()


class Limits(BaseModel):
    """Bounds of what a server takes from a site.

    Attributes:
        n_train: most training samples that a site may say it has.
        update: largest absolute value in a model that a site sends, as a multiple of the largest that it was sent, at
            least 1. Other values may be sums over samples, or variances: their bounds are wider (`check_numbers`).
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    n_train: int = Field(1_000_000, ge=1, le=2**31)
    update: float = Field(100.0, ge=1, allow_inf_nan=False)


class SiteJob(BaseModel):
    """A cell as server and sites run it.

    Attributes:
        settings: of the cell, complete.
        data: what the sites' samples have in common.
        lanes: clients per call of a cohort, which a site keeps to although it has one (0: as the engine says).
        limits: bounds of what the server takes from a site.
        forms: facts about the messages of a round (`bench.sites.rehearsal`); None: not known yet, and all is taken.
        package: version of pFLeague that exported it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    settings: Settings
    data: DataFacts
    lanes: int = Field(ge=0)
    limits: Limits = Limits()
    forms: Forms | None = None
    package: str = __version__

    @property
    def sites(self) -> list[int]:
        """The sites' numbers: the clients of the cell."""
        if self.settings.clients == "all":
            raise UserError("the job's settings say `clients: all`; a job says how many sites there are")
        return list(range(self.settings.clients))

    @property
    def dtype(self) -> torch.dtype:
        """Type of the numbers of the cell's models."""
        dtype: torch.dtype = getattr(torch, self.settings.dtype)
        return dtype

    def limit(self, direction: Literal["up", "down"]) -> int | None:
        """Most bytes of a message; None if nothing is known yet."""
        return self.forms.bytes.get(direction) if self.forms else None

    def check_site(self, site: int) -> None:
        """Refuse a number that no site has.

        Raises:
            UserError: it is one.
        """
        if site not in self.sites:
            raise UserError(f"there is no site {site}: the job has sites 0 to {len(self.sites) - 1}")

    def identity(self) -> Identity:
        """Name all that server and sites must agree on, with the code that is installed here."""
        code = code_digest(METHODS, self.settings.method)
        if self.settings.server is not None:
            code += code_digest(SERVER_RULES, self.settings.server.name)
        science = {name: value for name, value in scientific(self.settings).items() if name not in _DATA}
        what = {"settings": science, "data": self.data.model_dump(mode="json"), "version": RESULT_VERSION}
        return Identity(
            protocol=PROTOCOL,
            package=__version__,
            method=self.settings.method,
            code=code,
            settings=digest(json.dumps(what, sort_keys=True)),
        )

    def half(
        self,
        dataset: Dataset,
        train: Mapping[int, Array],
        validation: Mapping[int, Array],
        executor: Executor = "auto",
    ) -> Federation:
        """The federation of a server or of a site, which knows the samples of these clients only.

        Raises:
            UserError: running statistics would have to stay with the sites.
        """
        nobody = np.empty(0, np.int64)
        lists = [tuple(of.get(i, nobody) for i in self.sites) for of in (train, validation)]
        partition = Partition(lists[0], lists[1], (nobody,) * len(self.sites), nobody)
        dataset, partition = normalised(self.settings, dataset, partition)
        federation = Federation(self.settings, dataset=dataset, partition=partition, public=None, executor=executor)
        if self.settings.batchnorm == "local" and federation.server.initial_model().spec.b:
            raise UserError("batchnorm: local cannot run at sites yet: take `aggregate`, or a model without BatchNorm")
        federation.engine.lanes = self.lanes or federation.engine.lanes
        return federation

    def of_site(self, site: int, samples: SiteSamples, executor: Executor = "auto") -> Federation:
        """The federation as a site sees it: one client and its samples.

        Raises:
            UserError: the samples are not of the job's kind.
        """
        missing = [name for name in ("x", "y") if name not in samples]
        unknown = sorted(set(samples) - set(PARTS))
        if missing or unknown:
            raise UserError(
                f"site {site}: its samples are {', '.join(PARTS)}; {', '.join(missing or unknown)} "
                + ("is missing" if missing else "is unknown")
            )
        n = len(samples["x"])
        if not n:
            raise UserError(f"site {site} has no training samples")
        x, y = (np.concatenate([samples[name], samples.get(f"{name}_validation", samples[name][:0])]) for name in "xy")
        at = np.arange(len(x))
        return self.half(self.data.dataset(x, y), {site: at[:n]}, {site: at[n:]}, executor)

    def of_server(self, sizes: Mapping[int, int]) -> Federation:
        """The federation as the server sees it: numbers of samples, and none of them.

        One empty sample stands in the place of all.
        """
        blank = np.zeros((1, *self.data.shape), self.data.dtype)
        return self.half(
            self.data.dataset(blank, np.zeros(1, np.int64)),
            {i: np.zeros(n, np.int64) for i, n in sizes.items()},
            {},
        )

    def save(self, path: Path) -> None:
        """Write the job as JSON."""
        inside.replace(path, self.model_dump_json(indent=1).encode())

    @classmethod
    def load(cls, path: Path) -> "SiteJob":
        """Read a job.

        Raises:
            UserError: there is none, or it is damaged.
        """
        try:
            check_folder(path.parent, "folder of a job", "`bench sites export` writes one")
            return cls.model_validate_json(inside.read_bytes(path))
        except FileNotFoundError:
            raise UserError(f"{path}: there is no such job; `bench sites export` writes one") from None
        except ValidationError as error:
            first = error.errors()[0]
            raise UserError(f"{path} is no job: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def check_settings(settings: Settings) -> None:
    """Refuse a cell that sites cannot run: it needs what a site alone does not have, or what only a simulation has.

    Raises:
        UserError: it is one; the message names the setting and says why.
    """
    method = make_method(settings)
    reasons = {
        f"method {settings.method}": "its server trains on the samples of all" if method.bound else "",
        f"method {settings.method} (its trigger)": (
            "" if isinstance(method.trigger, Everyone) else "its messages come in the order of a simulated clock"
        ),
        "normalise: pooled": "statistics of all sites' samples" if settings.normalise == "pooled" else "",
        "public": "public samples are not part of a job yet" if settings.public else "",
        "clients: all": "a job says how many sites there are" if settings.clients == "all" else "",
        "channel": "what its operations encode does not travel encoded yet" if settings.channel else "",
        "dp_sgd": "its noise is drawn from the seed, which everybody knows: no privacy" if settings.dp_sgd else "",
        "attack": "sites that lie are for simulations" if settings.attack else "",
        "timeline": "when data change is known in simulations only" if settings.timeline else "",
        "new_clients": "clients that come later are for simulations" if settings.new_clients else "",
        f"unselected: {settings.unselected}": (
            "" if settings.unselected == "idle" else "sites that are not selected get no message"
        ),
        "pm_until_broadcast": "it asks the simulated clock" if settings.pm_until_broadcast else "",
        "client_models: by size": (
            "it takes the sizes of all sites" if not isinstance(settings.client_models, tuple) else ""
        ),
    }
    for what, reason in reasons.items():
        if reason:
            raise UserError(f"{what} cannot run at sites: {reason}")


def simulated(settings: Settings, data_root: Path) -> tuple[Dataset, list[dict[str, Array]]]:
    """The data set of a cell before normalisation, and each client's samples of it.

    Raises:
        UserError: the data are missing, or a client has no training samples.
    """
    dataset = load_dataset(settings, data_root)
    dataset, partition = apply_shifts(settings, dataset, load_partition(settings, dataset))
    if dataset.missing is not None:
        raise UserError(f"data set {dataset.name!r} has gaps: a site fills its own where it loads its samples")
    samples = []
    for i, train in enumerate(partition.train):
        if not len(train):
            raise UserError(f"client {i} has no training samples: use fewer clients or a larger alpha")
        held = partition.validation[i]
        samples.append(
            dict(zip(PARTS, (dataset.x[train], dataset.y[train], dataset.x[held], dataset.y[held]), strict=True))
        )
    return dataset, samples
