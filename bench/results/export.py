"""Models of a finished cell as files that predict anywhere: one of each client, the generic one, and a short script."""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bench.data import Array
from bench.engine.device_data import Normalisation
from bench.errors import UserError
from bench.exported import ExportedModel, exported, far_apart
from bench.federation.cell_data import load_partition
from bench.operations import NotExportable, Recording
from bench.places import check_output_folder, file_stems
from bench.results.figures import ReadCell
from bench.results.saved_models import KeptModel, SavedModels
from bench.store import inside

GENERIC = "generic.pt"
INDEX = "models.json"
SCRIPT = "predict.py"
_TRIED = 64  # samples with which an exported model is compared to the saved one

PREDICT = '''\
"""Predict new rows: python predict.py MODEL.pt ROWS.csv [SITE.pt] > predicted.csv

SITE.pt, of the site that the rows are from, is for a generic model without a normalisation only. pFLeague is needed.
"""

import sys

from bench.errors import UserError
from bench.exported import load_model

if {"-h", "--help"} & set(sys.argv):
    print(__doc__)
    sys.exit()
if len(sys.argv) < 3:
    sys.exit(__doc__)
try:
    model, *site = [load_model(file) for file in (sys.argv[1], *sys.argv[3:4])]
    table, notes = model.predict(sys.argv[2], *site)
except UserError as error:
    sys.exit(f"predict.py: {error}")
print(*notes, sep="\\n", end="\\n" if notes else "", file=sys.stderr)
print(table.to_csv(index=False), end="")
'''


class Export(NamedTuple):
    """Exported models of a cell.

    Attributes:
        models: the file of each site's model by the site's name, and under `generic` that of the generic model.
        notes: what is to be known of them, a line each, such as a site whose file is the generic model.
    """

    models: dict[str, Path]
    notes: list[str]


def export_cell(cell: ReadCell, out: Path, data_root: Path) -> Export:
    """Write the models of a finished cell to a folder; the work of `bench.results.results.CellView.export`.

    The folder has a file for each client, named after its site, `generic.pt`, `models.json` that says which is which,
    and `predict.py`. Each model is compared on test samples with the one that the cell's evaluation used.

    Raises:
        UserError: the cell is not done, kept no models, its data are not there, or its models cannot be exported; then
            nothing is written.
    """
    check_output_folder(out, empty=True)
    if cell.settings.shifts or cell.settings.timeline or cell.settings.attack:
        raise UserError(
            f"{cell.name}: its models saw rows that were changed (`shifts`, `timeline` or an attack on data), which no "
            "table has; a cell without can be exported"
        )
    saved = SavedModels(cell, data_root)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as folder:
        models, notes = _write(saved, Path(folder))
        out.mkdir(exist_ok=True)
        for file in Path(folder).iterdir():
            file.rename(out / file.name)
    return Export({name: out / file for name, file in models.items()}, notes)


def _write(saved: SavedModels, folder: Path) -> tuple[dict[str, str], list[str]]:
    """Write all files; return the names of those of models, and what is to be known of them."""
    cell, notes = saved.cell, []
    tests = load_partition(cell.settings, saved.raw).test
    names = saved.partition.names or tuple(f"client-{client}" for client in range(len(saved.partition)))
    stems = file_stems((names[client] for client in saved.clients), taken=[GENERIC.removesuffix(".pt")])
    files = {client: f"{stem}.pt" for client, stem in zip(saved.clients, stems, strict=True)}
    sites: dict[str, Any] = {}
    recordings: list[Recording] = []
    for client, file in files.items():
        model = _checked(saved, client, names[client], tests[client], recordings)
        model.save(folder / file)
        sites[names[client]] = {"file": file, "round": model.cell["round"]}
    if saved.trains == "gm":
        notes.append(f"{cell.settings.method} trains no personalized models: the file of each site is the generic one")
    generic = _generic(saved, notes, recordings)
    if generic is not None:
        generic.save(folder / GENERIC)
    index = {
        "cell": _cell(saved, None),
        "settings": cell.settings.model_dump(mode="json", exclude_defaults=True),
        "generic": GENERIC if generic is not None else None,
        "sites": sites,
        "notes": notes,
    }
    inside.replace(folder / INDEX, json.dumps(index, indent=2, ensure_ascii=False).encode())
    inside.replace(folder / SCRIPT, PREDICT.encode())
    of_sites = {site: of_site["file"] for site, of_site in sites.items()}
    return of_sites | ({"generic": GENERIC} if generic is not None else {}), notes


def _generic(saved: SavedModels, notes: list[str], recordings: list[Recording]) -> ExportedModel | None:
    """The generic model; None where the architectures of clients differ."""
    try:
        kept = saved.load()
    except UserError as error:
        if "differ in architecture" not in str(error):
            raise
        notes.append("there is no generic model: the clients' models differ in architecture")
        return None
    if saved.trains == "pm":
        notes.append(
            f"{saved.cell.settings.method} trains no generic model: {GENERIC} is the mean of the personalized ones"
        )
    if saved.dataset.client_statistics:
        notes.append(f"{GENERIC} takes rows as a site normalises them: the site's file beside it says how")
    return _exported(saved, kept, None, saved.dataset.filled[: saved.dataset.n_train], recordings)


def _checked(saved: SavedModels, client: int, site: str, tests: Any, recordings: list[Recording]) -> ExportedModel:
    """A client's model, compared on its test samples, as they are in the file, with what the evaluation saw.

    Raises:
        UserError: the outputs are not the same.
    """
    seen = saved.dataset.filled[saved.partition.test[client]]
    kept = saved.load(client)
    model = _exported(
        saved, kept, site, seen if len(seen) else saved.dataset.filled[: saved.dataset.n_train], recordings
    )
    x = torch.from_numpy(saved.raw.x[tests[:_TRIED]])
    with torch.no_grad():
        expected = kept.logits(_as_evaluated(saved, kept, seen))
    if far_apart(model(x), expected):
        raise UserError(
            f"{saved.cell.name}: the exported model of {site} gives other outputs than the cell's evaluation; its data "
            "have been changed since, or this is a fault of pFLeague"
        )
    return model


def _as_evaluated(saved: SavedModels, kept: KeptModel, x: Array) -> Tensor:
    """Some stored samples as the evaluation's networks saw them, which the data set's own statistics normalise."""
    stored, dtype = torch.from_numpy(np.ascontiguousarray(x[:_TRIED])), next(kept.network.parameters()).dtype
    return stored.long() if saved.dataset.vocabulary else Normalisation.of(saved.dataset, dtype).apply(stored, dtype)


def _exported(
    saved: SavedModels, kept: KeptModel, site: str | None, x: Array, recordings: list[Recording]
) -> ExportedModel:
    """The exported form of a saved model, tried on stored samples `x`; what networks compute is recorded once."""
    raw = saved.raw
    header = {
        "site": site,
        "classes": list(raw.classes) or list(map(str, range(raw.num_classes))),
        "cell": _cell(saved, kept.round),
        "shape": list(raw.x.shape[1:]),
        "needs_site": kept.needs_client,
        "table": raw.table,
        "bytes": raw.x.dtype == np.uint8,
        "vocabulary": raw.vocabulary,
    }
    normalisation = [kept.mean, kept.std] if kept.mean.numel() else []
    example = _as_evaluated(saved, kept, x)
    try:
        return exported(
            kept.network, example, normalisation=normalisation, bf16=kept.bf16, header=header, recordings=recordings
        )
    except NotExportable as error:
        raise UserError(f"{saved.cell.name}: the model of {site or 'all'} cannot be exported: {error}") from None


def _cell(saved: SavedModels, round: int | None) -> Mapping[str, Any]:
    cell = saved.cell
    described = {"id": cell.folder.name, "name": cell.name, "method": cell.settings.method}
    return described if round is None else {**described, "round": round}
