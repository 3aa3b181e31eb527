"""Saved models of a finished cell, which `bench run --keep` left, as a torch module that takes raw samples.

`best` keeps the evaluated models of the reported round, in `models/gm` and `models/pm`, as their rounds may differ;
`all` keeps the whole last state, from which models are made again; `server` keeps only the server's part of it.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from bench.config.digests import data_and_models, own_code
from bench.data import Dataset, Floats, Indices
from bench.engine.device_data import Normalisation, Pool
from bench.engine.predict import Task, outputs
from bench.errors import UserError
from bench.exported import check_samples
from bench.federation.cell_data import load_all, load_dataset
from bench.federation.features import Head, with_features
from bench.federation.federation import Federation
from bench.federation.scores import Evaluation
from bench.federation.snapshot import Packer, unpack
from bench.model_call import Arithmetic, batchnorm_in_float32
from bench.params import Params
from bench.results.figures import ALL, ReadCell
from bench.settings import Settings
from bench.store import checkpoint, inside
from bench.store.documents import read_json
from bench.store.features import FeatureFiles
from bench.tensors import fill

if TYPE_CHECKING:
    from bench.results.reported_round import Curves

METRICS = ("gm", "pm")
FOLDER = "models"
_REMEDY = (
    "Run it again with its models: bench run --grid GRID --fresh --keep best (the reported round; --keep all: the last "
    "one)"
)


class KeptModel(nn.Module):
    """A model of a finished cell, ready to predict (in `eval` mode): logits `[n, classes]` of raw samples.

    Raw samples are as in `bench.load_dataset(cell.settings).x`: `[n, channels, height, width]` images with values 0 ..
    255, arrays as in the file, token numbers, or rows of a table, nan where a number is missing. Under `normalise:
    per_client` a client's model normalises them, and fills gaps, as that client does; the generic one belongs to no
    client, and a call says whose samples they are. The model can be trained on like any module.

    Attributes:
        network: the model itself, which takes normalised samples.
        mean, std: per channel; they normalise, in their own dtype. Empty for tokens, and where `needs_client`.
        bf16: products are in bfloat16, as in the cell's evaluation.
        classes: names of the classes; may be empty.
        cell: id of its cell.
        round: the round that the model is from.
        needs_client: whether calls take a client's model beside the samples.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        network: nn.Module,
        normalisation: Normalisation | None,
        raw: Dataset,
        *,
        bf16: bool,
        cell: str,
        round: int,
    ) -> None:
        super().__init__()
        self.network = network
        if bf16:
            batchnorm_in_float32(network)
        self.needs_client = normalisation is None
        mean, std = normalisation or (torch.empty(0), torch.empty(0))
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)
        self.bf16 = bf16
        self.classes = raw.classes
        self.cell = cell
        self.round = round
        self._shape, self._of_table = raw.x.shape[1:], raw.table is not None
        self._of_bytes, self._vocabulary = raw.x.dtype == np.uint8, raw.vocabulary

    def forward(self, x: Tensor, at: "KeptModel | None" = None) -> Tensor:
        """Compute logits `[n, classes]`.

        Args:
            x: raw samples `[n, ...]`.
            at: for a model that `needs_client`, and for no other: the model of the client whose samples they are.

        Raises:
            UserError: they are no raw samples of the cell's data, or `at` is missing or another than that.
        """
        check_samples(x, self._shape, of_bytes=self._of_bytes, vocabulary=self._vocabulary, of_table=self._of_table)
        if self.needs_client and (at is None or at.needs_client or at.cell != self.cell):
            raise UserError(
                "under `normalise: per_client` the generic model is no client's: call it with the samples and, as "
                "`at`, the model of the client that they are from, `cell.model(client=...)`"
            )
        if at is not None and not self.needs_client:
            raise UserError("this model normalises samples itself: leave `at` out")
        return self.logits((at or self).normalised(x))

    def normalised(self, x: Tensor) -> Tensor:
        """Raw samples as the network takes them; a missing number is the mean, which becomes 0."""
        dtype = next(self.network.parameters()).dtype
        return Normalisation(self.mean, self.std).apply(x, dtype).nan_to_num(nan=0.0) if self.mean.numel() else x.long()

    def logits(self, seen: Tensor) -> Tensor:
        """Logits `[n, classes]` of normalised samples."""
        weights = next(self.network.parameters())
        with torch.autocast(weights.device.type, torch.bfloat16, enabled=self.bf16, cache_enabled=False):
            out: Tensor = self.network(seen)
        return out.to(weights.dtype)


@dataclass(frozen=True)
class ReportedModels:
    """The models of the reported rounds; the rounds of both kinds may differ.

    Attributes:
        generic: the generic model, if there is one.
        personal: the personalized ones by client.
        rounds: of `gm` and `pm`, as far as they were kept.
    """

    generic: Params | None
    personal: dict[int, Params]
    rounds: dict[str, int]


def reported_models(folder: Path, settings: Settings, federation: Federation) -> ReportedModels:
    """Load the models of the reported rounds; what an attempt before the last one left of another round is no such."""
    models: dict[str, dict[int, Params]] = {"gm": {}, "pm": {}}
    rounds = {}
    for metric in METRICS:
        saved = next(checkpoint.load(folder / FOLDER / metric), None)
        if saved is not None and saved.version == reported_so_far(folder, metric, settings):
            home = federation.engine.device_data.device
            tensors = {name: tensor.to(home) for name, tensor in saved.tensors.items()}
            models[metric] = unpack(saved.rest["models"], tensors, federation.server.specs)
            rounds[metric] = saved.version
    return ReportedModels(models["gm"].get(ALL), models["pm"], rounds)


class SavedModels:
    """The saved models of a finished cell, whose data are read once for all of them.

    Attributes:
        cell: the cell.
        raw: the data set.
        dataset, partition: its samples as the cell's networks were evaluated on them.
        clients: ids of the clients that it has models of.

    Raises:
        UserError: the cell is not done, or its data are not there.
    """

    def __init__(self, cell: ReadCell, data_root: Path | str = "data") -> None:
        if cell.status.state != "done":
            reason = f" ({cell.status.reason})" if cell.status.reason else ""
            raise UserError(f"{cell.name} is {cell.status.state}, not done: its models are there when it is{reason}")
        self.cell = cell
        self.raw = load_dataset(cell.settings, Path(data_root))
        self.dataset, self.partition, public = load_all(cell.settings, Path(data_root))
        features = FeatureFiles(cell.folder, own_code(data_and_models(cell.settings)).values())
        self._federation = Federation(
            cell.settings, dataset=self.dataset, partition=self.partition, public=public, features=features
        )
        self._federation.enter(cell.settings.rounds)
        self.clients = self._federation.clients.ids

    @cached_property
    def _reported(self) -> ReportedModels:
        return reported_models(self.cell.folder, self.cell.settings, self._federation)

    @property
    def trains(self) -> str:
        """The models that the method trains: `gm`, `pm` or `both`."""
        return self._federation.method.trains

    def test_logits(self, metric: str) -> tuple[Indices, Indices, Floats]:
        """Apply the models of the reported round to the clients' own tests, client after client.

        Args:
            metric: `gm`, the generic model everywhere, or `pm`, each client's own.

        Returns:
            Of each test sample its client, its position in `dataset`, and the logits `[samples, classes]`.

        Raises:
            UserError: the cell kept no such models.
        """
        kept, tests = self._reported, self.partition.test
        if metric not in kept.rounds or (metric == "gm" and kept.generic is None):
            raise UserError(f"{self.cell.name}: no model of the reported round was kept. {_REMEDY}")
        clients = [i for i in self.clients if len(tests[i])]
        models = [kept.generic if metric == "gm" else kept.personal[i] for i in clients]
        tasks = [(model, tests[i]) for model, i in zip(models, clients, strict=True) if model is not None]
        logits = torch.cat(model_logits(self._federation, self.dataset, tasks)).double().cpu().numpy()
        return np.repeat(clients, [len(tests[i]) for i in clients]), np.concatenate([at for _, at in tasks]), logits

    def load(self, client: int | None = None) -> KeptModel:
        """Load the generic model, or the personalized one of a client.

        Where a method trains no generic model, it is the mean of the personalized ones; where it trains no personalized
        models, they are the generic one (Remark 4.1 of the SCD paper), as in results.

        Raises:
            UserError: the cell kept no such model.
        """
        cell, federation = self.cell, self._federation
        if client is not None and client not in self.clients:
            raise UserError(f"{cell.name} trained no client {client}; there are {self.clients}")
        metric, kept = METRICS[client is not None], self._reported
        if metric in kept.rounds:
            params, round = kept.generic if client is None else kept.personal.get(client), kept.rounds[metric]
        else:
            params, round = _of_last_state(cell, federation, client), cell.settings.rounds
        if params is None:
            raise UserError(
                f"{cell.name} has no generic model: its clients' models differ in architecture. Name a client"
            )
        network = _whole_network(params, federation)
        normalisation = _normalisation(self.dataset, client, params.weights.dtype)
        bf16 = cell.settings.precision == "bf16"
        return KeptModel(network, normalisation, self.raw, bf16=bf16, cell=cell.folder.name, round=round).eval()


def model_logits(federation: Federation, dataset: Dataset, tasks: Sequence[Task]) -> list[Tensor]:
    """Logits of model values on samples of a data set, as the federation's evaluation computes them."""
    device, settings = federation.engine.device_data.device, federation.settings
    dtype, arithmetic = getattr(torch, settings.dtype), Arithmetic(settings.precision)
    if not federation.on_features:
        return outputs(Pool.of(dataset, device, dtype), tasks, arithmetic)
    used = np.unique(np.concatenate([at for _, at in tasks]))
    samples = dataset.subset(used, 0)
    pool = with_features(Pool.of(samples, device, dtype), federation.server._whole_model(), samples, arithmetic)
    return outputs(pool, [(w, np.searchsorted(used, at)) for w, at in tasks], arithmetic)


def _normalisation(dataset: Dataset, client: int | None, dtype: torch.dtype) -> Normalisation | None:
    """The normalisation of raw samples: the client's own, if the cell has one for each client; None for nobody then."""
    if not dataset.client_statistics:
        return Normalisation.of(dataset, dtype)
    if client is None:
        return None
    shape = (1, -1, *([1] * (dataset.x.ndim - 2)))
    mean, std = (torch.tensor(values, dtype=torch.float64) for values in dataset.client_statistics[client])
    return Normalisation(mean.view(shape), std.view(shape))


def keep_reported(folder: Path, version: int, evaluation: Evaluation, settings: Settings, clients: list[int]) -> None:
    """Keep the models just evaluated if their round is the reported one so far, in place of those kept before."""
    for metric in METRICS:
        if reported_so_far(folder, metric, settings) != version:
            continue
        models = {ALL: evaluation.generic}
        if metric == "pm":
            models = {i: evaluation.personal.get(i, evaluation.generic) for i in clients}
        packer = Packer()
        plain = packer.pack({i: model for i, model in models.items() if model is not None})
        inside.make_folder(folder, folder / FOLDER)
        saved = checkpoint.Checkpoint(version, packer.tensors, {"models": plain})
        checkpoint.Writer(folder / FOLDER / metric).save(saved, generations=1)


def has_kept(folder: Path, keep: str) -> bool:
    """Whether a finished cell's folder has the models or state that `--keep` would have left there."""
    if keep == "best":
        return (folder / FOLDER).is_dir()
    states = sorted(folder.glob("checkpoint/*/state.json"))
    return bool(states) and (keep == "server" or "known" in read_json(states[-1])["rest"]["federation"])


def has_reported(folder: Path, settings: Settings) -> bool:
    """Whether a cell's folder has models of a reported round, and not only of one that was so in an earlier attempt."""
    saved = {metric: folder / FOLDER / metric for metric in METRICS}
    rounds = {metric: reported_so_far(folder, metric, settings) for metric, path in saved.items() if path.is_dir()}
    return any((saved[metric] / checkpoint.name_of(version)).is_dir() for metric, version in rounds.items() if version)


def reported_so_far(folder: Path, metric: str, settings: Settings) -> int | None:
    """The round that a report shows of a metric, by the rows up to now."""
    # these load pandas, which has a thread, and workers are forked before
    from bench.results.reported_round import after, curves_of_cells, reported_round, selecting_curves, table_of
    from bench.store.tables import read_table

    def curves(quantity: str) -> "Curves":
        table = read_table(folder, table_of(quantity))
        return after(curves_of_cells(table, [len(table)], quantity)[0], settings.last_change)

    selecting = selecting_curves(curves(settings.select_by), settings.select_by)
    return reported_round(curves("accuracy"), selecting, metric, settings.protocol)


def _of_last_state(cell: ReadCell, federation: Federation, client: int | None) -> Params | None:
    saved = next(checkpoint.load(cell.folder / "checkpoint"), None)
    if saved is None or saved.version != cell.settings.rounds:
        raise UserError(f"{cell.name}: no model was kept. {_REMEDY}")
    plain, evaluator, trains = saved.rest["federation"], federation.evaluator, federation.method.trains
    if "known" in plain:
        federation.restore(saved.tensors, plain)
    elif trains == "pm" or (client is not None and trains == "both") or federation.clients.local_buffers:
        raise UserError(f"{cell.name}: `--keep server` kept nothing of the clients. {_REMEDY}")
    else:
        federation.enter(saved.version)
        federation.server.round = saved.version - 1
        federation.server.state = unpack(plain, saved.tensors, federation.server.specs)["server"]
    if client is None or trains == "gm":
        personal = evaluator.personal(saved.version) if trains == "pm" else {}
        return evaluator.generic(saved.version, personal)
    return evaluator.personal(saved.version, [client])[client]


class _Behind(nn.Module):
    """A network of features, behind the body that computes them."""

    def __init__(self, body: Any, network: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        """Logits `[n, classes]`."""
        out: Tensor = self.network(self.body.features(x))
        return out


def _whole_network(params: Params, federation: Federation) -> nn.Module:
    """Build the network of a model value, with the frozen body where the cell trained on features."""
    if not federation.on_features:
        return _network(params)
    whole = federation.server._whole_model()
    if isinstance(params.spec.module, Head):
        return _network(Params(params.weights, params.buffers, whole.spec))
    return _Behind(_network(whole), _network(params))


def _network(params: Params) -> nn.Module:
    """Build the network of a model value, with weights of its own."""
    constants = params.spec.constants(torch.device("cpu"), params.weights.dtype)
    return fill(copy.deepcopy(params.spec.module), params.tensors() | constants, torch.device("cpu"))
