"""The judge of `bench verify --blind`: it has the labels of tests and loads no plug-in (docs/verify.md)."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from bench.config.digests import data_and_models, method_and_rules
from bench.errors import UserError
from bench.federation.attacks import malicious_clients
from bench.federation.cell_data import load_all
from bench.federation.scores import Evaluation, Scorers
from bench.federation.setup import divide_clients
from bench.plugin import Registry
from bench.results.cell_names import cell_name
from bench.results.results import CellView
from bench.runs import blind
from bench.runs.cell_options import choose_device
from bench.runs.plan import PlannedCell, plan
from bench.settings import DEFAULT_SELECTION, PRESENTATION, Settings
from bench.store import store
from bench.store.data_record import tests_record
from bench.store.tables import Tables

_SCORED = ("metrics", "clients", "hits", *store.OPTIONAL)
"""Tables that the judge writes; all others are the worker's."""


class Judge:
    """Plans cells, hands out their data without labels of tests, and scores what comes back.

    From its first moment on this process looks up nothing but what comes with pFLeague.

    Args:
        folder: an empty folder that the workers are not told of.
        data_root: where data files lie.

    Attributes:
        unchecked: number of planned cells whose id was not checked.
    """

    def __init__(self, folder: Path, data_root: Path) -> None:
        Registry.entry_points = False
        torch.set_num_threads(1)  # as in workers: threads may change the last digit of a sum
        self._folder = folder
        self._data_root = data_root
        self.unchecked = 0

    def plan(self, cells: Sequence[CellView]) -> list[PlannedCell]:
        """Plan cells as `bench.runs.plan.plan` does, without loading plug-ins.

        The id of a cell of a plug-in's method is not checked, because it depends on the plug-in's code.

        Raises:
            UserError: data, partition, shift, attack or model of a cell is a plug-in's, or two cells have one id.
        """
        for cell in cells:
            _refuse_plugins(cell.settings)
        _check_ids(cells)
        foreign = [
            any(name not in registry.names() for registry, name in method_and_rules(cell.settings)) for cell in cells
        ]
        self.unchecked += sum(foreign)
        # Nothing else of a plan depends on the method.
        settings = [_with_our_method(c.settings) if new else c.settings for c, new in zip(cells, foreign, strict=True)]
        planned = plan(settings, self._data_root, download=False)
        return [
            replace(plan_here, id=cell.id, settings=cell.settings) if new else plan_here
            for cell, plan_here, new in zip(cells, planned, foreign, strict=True)
        ]

    def hand_out(self, folder: Path, cells: Sequence[PlannedCell]) -> None:
        """Write each cell's data into its folder under `folder`, without labels of tests."""
        for cell in cells:
            if not (folder / cell.id).exists():  # two runs may have the same cell
                blind.write_data(folder / cell.id, folder, load_all(cell.settings, self._data_root))

    def score(self, cell: PlannedCell, folder: Path) -> Path:
        """Score a worker's outputs in a cell's folder, and return a folder with the cell's tables and status."""
        scored = self._folder / cell.id
        if scored.exists():
            return scored
        scored.mkdir()
        status = store.read_status(folder)
        if status.state in store.FINISHED:
            try:
                self._score(cell, status.rounds, folder, scored)
            except Exception as error:  # a plug-in may have left anything
                reason = f"what its process left are no outputs of models ({type(error).__name__}: {error})"
                status = replace(status, state="failed", reason=reason)
        checksums = {path.stem: store.checksum(path) for path in scored.glob("*.csv")}
        store.write_status(scored, replace(status, checksums=checksums))
        return scored

    def _score(self, cell: PlannedCell, rounds: int, folder: Path, scored: Path) -> None:
        dataset, partition, _ = load_all(cell.settings, self._data_root)
        device = torch.device(choose_device("auto"))
        labels = torch.from_numpy(dataset.y).to(device)
        further = cell.settings.further_metrics
        ids, new = divide_clients(partition.clients, cell.settings, partition.new)
        malicious = malicious_clients(cell.settings, partition)
        by_stage = [
            Scorers(labels, partition, stage.clients if number else ids, new, further, number, malicious)
            for number, stage in enumerate(partition.stages)
        ]
        records = {
            "settings": cell.settings.model_dump(), "partition": cell.record, "tests": tests_record(partition, ids),
        }  # fmt: skip
        for name, record in records.items():
            store.write_json(scored / f"{name}.json", record)
        tables = Tables(scored, store.optional_tables(cell.settings))
        tables.restart()
        left = (*(f"{table}.csv" for table in store.COLUMNS if table not in _SCORED), "relations.json", "privacy.json")
        for name in left:
            if (folder / name).exists():
                shutil.copyfile(folder / name, scored / name)
        for version in range(1, min(rounds, cell.settings.rounds) + 1):
            outputs = blind.read_outputs(folder, version)
            evaluation = Evaluation(outputs=[replace(output, logits=output.logits.to(device)) for output in outputs])
            by_stage[partition.stage(version)].score(evaluation)
            tables.append_evaluation(version, evaluation)


def _refuse_plugins(settings: Settings) -> None:
    """Refuse a cell whose data the judge cannot make.

    Raises:
        UserError: its data set, partition, shift, attack or model is a plug-in's, or another package's.
    """
    for registry, name in data_and_models(settings):
        if name not in registry.names():
            raise UserError(
                f"--blind: {cell_name(settings)} has a {registry.kind} {name!r} of a plug-in. The process that "
                "scores loads no plug-in, as it could change the scores; verify the cell without --blind"
            )


def _check_ids(cells: Sequence[CellView]) -> None:
    """Refuse ids by which one cell would be taken for another; that they lead nowhere else says `load_run`.

    Raises:
        UserError: cells of different settings have one.
    """
    sciences: dict[str, dict[str, Any]] = {}
    for cell in cells:
        science = cell.settings.model_dump(exclude=set(PRESENTATION))
        if sciences.setdefault(cell.id, science) != science:
            raise UserError(
                f"--blind: {cell.name} has the id {cell.id} of a cell with other settings: a run was edited"
            )


def _with_our_method(settings: Settings) -> Settings:
    ours = {"method": "fedavg", "server": None, "selection": DEFAULT_SELECTION, "channel": ()}
    return settings.model_copy(update=ours)
