"""The folder of a cell's job, and a site's samples in it."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np

from bench.data import Array
from bench.errors import UserError, in_words, refusing_exits
from bench.places import check_output_folder
from bench.settings import Settings
from bench.sites.job import JOB, DataFacts, Limits, SiteJob, SiteSamples, check_settings, simulated
from bench.sites.rehearsal import rehearse
from bench.sites.server import Travelled
from bench.store import inside

LOADER, SAMPLES = "data.py", "samples.npz"
"""A file of a job's folder; and of a site's folder, which `data.py` reads unless it says otherwise."""

_LOADER = '''"""The samples of a site: the one thing to fill in."""

from pathlib import Path

import numpy as np


def load(folder: Path, site: int) -> dict[str, np.ndarray]:
    """Return the samples of this site, which no other process sees.

    Args:
        folder: the folder of the site.
        site: its number.

    Returns:
        `x` {x} and `y` [n] (0 to {last}) of training; `x_validation` and `y_validation` where some are held out.
        {normalisation}{meaning}
    """
    with np.load(folder / "{samples}") as file:
        return dict(file)
'''


def export(settings: Settings, data_root: Path, out: Path, limits: Limits | None = None) -> list[Travelled]:
    """Write the job of a cell: `job.json`, and `data.py`, which loads a site's samples.

    Returns:
        The messages of a round, as its rehearsal has seen them.

    Raises:
        UserError: the cell cannot run at sites; its data are missing; or the folder is not empty.
    """
    check_settings(settings)
    check_output_folder(out, empty=True)
    dataset, _ = simulated(settings, data_root)
    first = SiteJob(settings=settings, data=DataFacts.of(dataset), lanes=0, limits=limits or Limits())
    lanes = first.of_server(dict.fromkeys(first.sites, 1)).engine.lanes
    forms, messages = rehearse(first.model_copy(update={"lanes": lanes}))
    job = first.model_copy(update={"lanes": lanes, "forms": forms})
    inside.make_folder(out, out)
    job.save(out / JOB)
    inside.replace(out / LOADER, _loader(job).encode())
    return messages


def _loader(job: SiteJob) -> str:
    facts = job.data
    if facts.vocabulary:
        normalisation = "They are tokens."
    else:
        which = "the site's own mean" if job.settings.normalise == "per_client" else "the job's mean"
        normalisation = f"They are normalised by {which} and standard deviation."
    return _LOADER.format(
        x=f"{facts.dtype} [n, {', '.join(map(str, facts.shape))}]", last=facts.num_classes - 1,
        normalisation=normalisation, samples=SAMPLES, meaning="".join(f"\n        {line}" for line in _meaning(facts)),
    )  # fmt: skip


def _meaning(facts: DataFacts) -> list[str]:
    """Lines that say what the columns and the class numbers mean: every site must have the same.

    Names are quoted as in JSON, without what would end a docstring.
    """
    lines = []
    for title, names in (("Columns of `x`:", facts.features), ("Class numbers in `y`:", facts.classes)):
        if names:
            lines += [title, *(f"    {i}: {json.dumps(name, ensure_ascii=False)}" for i, name in enumerate(names))]
    if facts.table is not None:
        lines += [
            "`datasets.new_rows.samples(file, table)` makes such an `x` of a file's rows, by names of columns;",
            "`table` is `bench.sites.job.SiteJob.load(path).data.table` of the job's file.",
        ]
    return lines


def write_samples(settings: Settings, data_root: Path, folders: list[Path]) -> None:
    """Write the samples of a cell's clients, each into a folder of its own: for a try on one machine."""
    _, samples = simulated(settings, data_root)
    for folder, arrays in zip(folders, samples, strict=True):
        inside.make_folder(folder, folder)
        with (folder / SAMPLES).open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)


def load_samples(loader: Path, folder: Path, site: int) -> SiteSamples:
    """The samples that a job's `data.py` loads.

    Raises:
        UserError: the file is missing, or has an error.
    """
    spec = importlib.util.spec_from_file_location("site_data", loader)
    if spec is None or spec.loader is None or not loader.is_file():
        raise UserError(f"{loader}: there is no such file")
    module = importlib.util.module_from_spec(spec)
    try:
        with refusing_exits():
            spec.loader.exec_module(module)
            samples: Any = module.load(folder, site)
    except Exception as error:
        raise UserError(f"{loader}: {in_words(error, str(loader))}") from error
    if not isinstance(samples, dict) or not all(isinstance(array, np.ndarray) for array in samples.values()):
        raise UserError(f"{loader}: `load` should return arrays by name")
    arrays: dict[str, Array] = samples
    return arrays
