"""The cells of a study in its run folder: their ids, which of them `run.json` lists, and what is used again."""

import contextlib
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from bench.config.digests import digest
from bench.config.identity import description
from bench.federation.cell_identity import Identities
from bench.results.reported_round import table_of
from bench.runs.plan import PlannedCell
from bench.settings import Settings
from bench.store import documents, store
from bench.store.tables import read_table
from sweeps.study import Arm, Study

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial

Finder = Callable[[Settings], str | None]
"""Gives the id of a cell; None where it is not known."""


def data_digests(study: Study, identities: Identities) -> dict[str, str]:
    """Digests of the data of arms, by their names, where only reading the data tells them from others.

    Raises:
        UserError: data are missing or damaged, or cannot be divided as asked for.
    """
    content = {arm.name: [identities.content(cell) for cell in arm.cells] for arm in study.arms}
    return {name: digest(json.dumps(texts))[:8] for name, texts in content.items() if any(texts)}


def with_data(study: Study, digests: dict[str, str]) -> Study:
    """The study whose Optuna studies are those of these data: trials on other data are no trials of it."""
    arms = tuple(
        replace(arm, name=f"{arm.name} {digests[arm.name]}") if arm.name in digests else arm for arm in study.arms
    )
    return replace(study, arms=arms)


def trial_cells(study: Study, studies: "dict[str, optuna.Study]") -> list[PlannedCell]:
    """The cells of all trials so far, by arm and number, each once."""
    cells: dict[str, PlannedCell] = {}
    for arm in study.arms:
        for trial in studies[arm.name].get_trials(deepcopy=False):
            if ids := trial_ids(arm, trial):
                for id, settings in zip(ids, arm.trial(trial.number, trial.params), strict=True):
                    cells.setdefault(id, PlannedCell(id, settings))
    return list(cells.values())


def trial_ids(arm: Arm, trial: "FrozenTrial") -> list[str]:
    """Ids of the cells of a trial; none where it was killed before it had any, or its settings were refused."""
    ids = [str(id) for id in trial.user_attrs.get("cells", ())]
    is_whole = len(ids) == len(arm.cells) and all(re.fullmatch(documents.CELL_ID, id) for id in ids)
    return ids if is_whole else []


def listed_ids(folder: Path) -> Finder:
    """Find ids of cells among those in `run.json`, for who has neither their data nor their code."""
    ids: dict[str, str] = {}
    for entry in (documents.read_run_file(folder) or {"cells": []})["cells"]:
        with contextlib.suppress(ValidationError):  # written by another version
            ids[description(Settings(**entry["settings"]))] = entry["id"]
    return lambda settings: ids.get(description(settings))


def list_cells(folder: Path, cells: Iterable[PlannedCell], *, others: bool = True) -> None:
    """Put cells into `run.json`; the caller holds the run's lock.

    Args:
        folder: the run's.
        cells: those that should be there.
        others: whether the cells that are there stay.
    """
    info = documents.read_run_file(folder) or {"cells": []}
    entries = list(info["cells"]) if others else []
    present = {(entry["id"], entry["label"]) for entry in entries}  # a cell of two labels is listed twice
    for cell in cells:
        if (cell.id, cell.settings.name) not in present:
            present.add((cell.id, cell.settings.name))
            entries.append({"id": cell.id, "label": cell.settings.name, "settings": cell.settings.model_dump()})
    store.write_json(folder / "run.json", {**info, "cells": entries})


def forget_unscored(folder: Path, cells: Iterable[PlannedCell]) -> None:
    """Remove finished cells that lack the score that chooses settings and rounds: they ran before it was asked for.

    Scores are no part of a cell's id, and without this one a trial would never end.
    """
    for cell in cells:
        score, place = cell.settings.select_by, folder / cell.id
        if table_of(score) == "metrics" or store.read_status(place, cell.settings).state != "done":
            continue
        if score not in set(read_table(place, "scores")["quantity"]):
            with contextlib.suppress(store.BusyError):  # another worker has just removed it, and runs it again
                store.forget(place)
