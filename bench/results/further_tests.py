"""Kept models of a finished cell on further tests (docs/scores.md): nothing is trained, no table of the cell changes.

Rows go to `evaluated.csv` in the cell's folder: those of `scores.csv` and `client_scores.csv` in one table, with the
test in place of the split.
"""

import csv
import io
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.config.digests import data_and_models, own_code
from bench.data import Dataset, Indices, Partition
from bench.errors import UserError
from bench.federation.attacks import make_attack
from bench.federation.cell_data import CellData, apply_shifts, file_samples, load_all
from bench.federation.federation import Federation
from bench.federation.scores import Evaluation, FurtherScores, Outputs, Scorer, mean_of_present
from bench.results.figures import ALL, ReadCell, missing_scores
from bench.results.saved_models import ReportedModels, model_logits, reported_models
from bench.samples.corruptions import corrupt
from bench.settings import NO_TRIGGER, CorruptedTest, FileTest, FurtherTest, Settings, ShiftedTest
from bench.store import inside, store
from bench.store.features import FeatureFiles

_Rows = list[dict[str, Any]]


def evaluate_cell(
    cell: ReadCell,
    tests: Sequence[FurtherTest],
    metrics: Sequence[str],
    data_root: Path = Path("data"),
    device: str = "cpu",
) -> int:
    """Score the kept models of a finished cell on tests, as far as its `evaluated.csv` does not have them.

    Args:
        cell: the cell; its settings say which data it has.
        tests: further tests.
        metrics: scores beside accuracy and loss; those that the cell's own tests lack are added, too.
        data_root: where data files lie.
        device: `cpu` or `cuda`.

    Returns:
        The number of rows that were added.

    Raises:
        UserError: the cell is not done or kept no models, its data are missing or others than it was run with, or a
            test does not fit them.
    """
    if cell.status.state != "done":
        raise UserError(f"{cell.name} is {cell.status.state}, not done")
    data = load_all(cell.settings, data_root)
    if data[1].hash != cell.status.partition.get("hash"):
        raise UserError(f"{cell.name}: its data or partition are others here than those that it was run with")
    dataset, partition, public = data
    features = FeatureFiles(cell.folder, own_code(data_and_models(cell.settings)).values())
    federation = Federation(
        cell.settings, dataset=dataset, partition=partition, public=public, device=device, features=features
    )
    with store.locked(cell.folder):
        return score_kept(cell.folder, cell.settings, data, federation, tests, metrics)


def score_kept(
    folder: Path,
    settings: Settings,
    data: CellData,
    federation: Federation,
    tests: Sequence[FurtherTest],
    metrics: Sequence[str],
) -> int:
    """Score the models that lie in a cell's folder; see `evaluate_cell`. The caller holds the folder.

    Args:
        data: the cell's data.
        federation: the cell's federation, for its clients and the architectures of its models.
    """
    missing = missing_scores(folder, tests, metrics)
    if not missing:
        return 0
    federation.enter(settings.rounds)
    models = reported_models(folder, settings, federation)
    if not models.rounds:
        raise UserError(
            f"{folder}: no model of the reported round was kept, or it is damaged; run the cell again with --fresh "
            "--keep best"
        )
    scoring = _Scoring(settings, data, federation, models)
    count = 0
    for label in dict.fromkeys(label for label, _ in missing):
        rows = scoring.rows(label, tests, [quantity for of, quantity in missing if of == label])
        _append(folder, rows)
        count += len(rows)
    return count


class _Scoring:
    """Scores the kept models of one cell."""

    def __init__(self, settings: Settings, data: CellData, federation: Federation, models: ReportedModels) -> None:
        self._settings = settings
        self._dataset, partition, _ = data
        self._partition = partition.stages[-1]
        self._ids = federation.clients.ids
        self._malicious = federation.malicious
        self._models = models
        self._federation = federation

    def rows(self, label: str, tests: Sequence[FurtherTest], quantities: Sequence[str]) -> _Rows:
        """Score all models on one test."""
        test = next((test for test in tests if label in test.labels), None)
        further = FurtherScores(quantities)
        kind = None if test is None else test.name
        if kind == "global":
            return self._elsewhere(label, self._dataset, {None: self._common_test()}, "global", further)
        if isinstance(test, FileTest):
            dataset = file_samples(test.path, self._dataset)
            return self._elsewhere(label, dataset, {None: np.arange(len(dataset.y))}, "global", further)
        if kind == "others":
            tests_of: dict[int | None, Indices] = {
                i: self._partition.test[i] for i in self._ids if len(self._partition.test[i])
            }
            return self._elsewhere(label, self._dataset, tests_of, "local", further)
        dataset, partition = self._dataset, self._partition
        if isinstance(test, CorruptedTest):
            dataset = self._corrupted(label)
        elif kind == "triggered":
            dataset, partition = self._triggered()
        elif isinstance(test, ShiftedTest):
            dataset, partition = self._shifted(test)
        return self._local(label, dataset, partition, quantities)

    def _common_test(self) -> Indices:
        common = self._partition.global_test
        return common if len(common) else np.unique(np.concatenate([self._partition.test[i] for i in self._ids]))

    def _corrupted(self, label: str) -> Dataset:
        """The data set with all test samples corrupted."""
        _, kind, severity = label.split(" ")
        at = np.unique(np.concatenate([self._common_test(), *(self._partition.test[i] for i in self._ids)]))
        x = self._dataset.x.copy()
        seed = self._settings.seed if self._settings.partition_seed is None else self._settings.partition_seed
        x[at] = corrupt(self._dataset.x[at], kind, int(severity), at, seed)
        return replace(self._dataset, x=x)

    def _shifted(self, test: ShiftedTest) -> tuple[Dataset, Partition]:
        """Samples and partition after the test's shifts, which come after those of the cell."""
        settings = self._settings.model_copy(update={"shifts": test.shifts, "timeline": ()})
        return apply_shifts(settings, self._dataset, self._partition)

    def _triggered(self) -> tuple[Dataset, Partition]:
        """The benign clients' tests of other classes than the target, with the attack's trigger and the target as
        label: accuracy on them is the attack's success.

        Raises:
            UserError: the cell has no attack with a trigger.
        """
        attack = make_attack(self._settings)
        if attack is None or self._malicious is None or not self._settings.has_trigger:
            raise UserError(NO_TRIGGER)
        tests = [
            np.empty(0, np.int64) if i in self._malicious else at[self._dataset.y[at] != attack.hp.target]
            for i, at in enumerate(self._partition.test)
        ]
        x, y, at = self._dataset.x.copy(), self._dataset.y.copy(), np.unique(np.concatenate(tests))
        x[at], y[at] = attack.trigger(self._dataset.x[at], self._dataset), attack.hp.target
        partition = replace(self._partition, test=tuple(tests), global_test=np.empty(0, np.int64))
        return replace(self._dataset, x=x, y=y), partition

    def _local(self, label: str, dataset: Dataset, partition: Partition, quantities: Sequence[str]) -> _Rows:
        """Score each model on its client's tests, and the generic one on all of them."""
        nothing = tuple(np.zeros(0, np.int64) for _ in partition.train)
        labels, lists = torch.from_numpy(dataset.y), replace(partition, validation=nothing)
        scorer = Scorer(labels, lists, self._ids, quantities, self._malicious)
        if not len(scorer.needed):
            return []
        generic, personal = self._models.generic, self._models.personal
        tasks = [] if generic is None else [(generic, scorer.needed)]
        tasks += [(personal[i], scorer.own[i]) for i in self._ids if personal]
        logits = torch.cat(model_logits(self._federation, dataset, tasks)).cpu()
        into = Evaluation()
        names = () if generic is None else ("gm",)
        scorer.score(Outputs(names, {"pm": self._ids} if personal else {}, logits), into)
        rows = [{**row, "client": ALL} for row in into.scores]
        rows += [{**row, "on": "local", "mean": ""} for row in into.client_scores]
        return [{**row, "split": label, "round": self._models.rounds[row["metric"]]} for row in rows]

    def _elsewhere(
        self, label: str, dataset: Dataset, parts: dict[int | None, Indices], on: str, further: FurtherScores
    ) -> _Rows:
        """Score each model on parts of samples, a client's own one left out, and average over them, each counting the
        same.

        Args:
            parts: positions of samples by client; None: they are nobody's.
            on: `local`, where the generic model has a score of its own at each client, or `global`.
        """
        models = self._models
        owners = [] if models.generic is None else [("gm", ALL, models.generic)]
        owners += [("pm", i, models.personal[i]) for i in self._ids if models.personal]
        union, ends = np.concatenate([*parts.values()]), np.cumsum([len(at) for at in parts.values()])[:-1]
        scored: dict[str, dict[int, dict[str, float]]] = defaultdict(dict)
        logits_of_all = model_logits(self._federation, dataset, [(model, union) for *_, model in owners])
        for (metric, owner, _), logits in zip(owners, logits_of_all, strict=True):
            pieces = np.split(logits.double().cpu().numpy(), ends)
            of_parts = {
                i: further.values(
                    dataset.y[at], piece, f"the test {label}" if i is None else f"the tests of client {i}"
                )
                for (i, at), piece in zip(parts.items(), pieces, strict=True)
            }
            for client in self._ids if owner == ALL and on == "local" else [owner]:
                others = [scores for i, scores in of_parts.items() if i != client]
                scored[metric][client] = {
                    name: mean_of_present(np.array([scores[name] for scores in others]), np.ones(len(others)))
                    for name in next(iter(of_parts.values()))
                }
        rows: _Rows = []
        for metric, by_client in scored.items():
            place = {"round": models.rounds[metric], "metric": metric, "on": on, "split": label}
            for quantity in next(iter(by_client.values())):
                row = {**place, "quantity": quantity}
                values = {client: scores[quantity] for client, scores in by_client.items()}
                if ALL not in values:
                    means = self._means(values).items()
                    rows += [{**row, "mean": mean, "client": ALL, "value": value} for mean, value in means]
                rows += [{**row, "mean": "", "client": client, "value": value} for client, value in values.items()]
        return rows

    def _means(self, values: dict[int, float]) -> dict[str, float]:
        """The means of clients' values by name, weighted by training samples and equally."""
        of_clients, train = np.array([*values.values()]), [float(len(self._partition.train[i])) for i in values]
        weights = {"train_size": np.array(train), "equal": np.ones(len(train))}
        return {mean: mean_of_present(of_clients, each) for mean, each in weights.items()}


def _append(folder: Path, rows: _Rows) -> None:
    """Add rows to the table; it is replaced as a whole, so that a kill leaves the old rows or all."""
    path = folder / "evaluated.csv"
    columns = store.EVALUATED
    before = inside.read_bytes(path) if inside.is_file(path) else (",".join(columns) + "\n").encode()
    buffer = io.StringIO()
    csv.DictWriter(buffer, columns, lineterminator="\n").writerows(rows)
    inside.replace(path, before + buffer.getvalue().encode())
