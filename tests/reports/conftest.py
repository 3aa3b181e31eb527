"""A run folder as the harness writes it, with random numbers instead of results of training."""

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.rng import generator
from bench.settings import Settings
from bench.store.store import COLUMNS
from tests.warm import PATIENCE

ROUNDS = 12
CLIENTS = 20
CLASSES = 10
LEVELS = {  # final accuracy of each method: generic model, personalized model
    "fedavg": (0.86, 0.80),
    "local": (0.45, 0.84),
    "fedper": (0.70, 0.88),
    "ditto": (0.86, 0.90),
    "scd": (0.87, 0.905),
    "finetune": (0.86, 0.80),
}
METHODS = ("fedavg", "local", "fedper", "ditto", "scd")
DERIVED = {"fedavg": ["pm"], "local": ["gm"], "fedper": ["gm"]}


def write_store(
    run: Path,
    *,
    seeds: int = 3,
    alphas: tuple[float, ...] = (1.0, 0.1),
    methods: tuple[str, ...] = METHODS,
    states: dict[tuple[str, float, int], str] | None = None,
    published: str | None = None,
    prefix: str = "",
    **common: object,
) -> Path:
    """Write a run folder; `states` gives the cells `(method, alpha, seed)` that are not done ("missing": no folder).

    Cells of runs with other settings have other ids if the runs have other prefixes.
    """
    cells = []
    for method in methods:
        for alpha in alphas:
            for seed in range(seeds):
                settings = Settings(method=method, alpha=alpha, seed=seed, clients=CLIENTS, rounds=ROUNDS, **common)
                cell = cell_id(f"{prefix}{method}-{alpha:g}-{seed}")
                cells.append({"id": cell, "label": settings.name, "settings": settings.model_dump()})
                state = (states or {}).get((method, alpha, seed), "done")
                if state != "missing":
                    _write_cell(run / cell, settings, state)
    run.mkdir(parents=True, exist_ok=True)
    _json(
        run / "run.json",
        {
            "grid": "quickstart",
            "published": published,
            "cells": cells,
            "command": "bench run --grid quickstart.yaml",
            "commit": "0123456789abcdef",
            "versions": {"python": "3.11.9", "torch": "2.11.0"},
            "machine": "two cores",
            "source": "methods: [fedavg, local]\n",
        },
    )
    return run


ATTACK = {"name": "sign_flip", "share": 0.2, "factor": 1.0}
CASES = {
    "plain": {},
    "attacked": {"attack": ATTACK},
    "robust": {"attack": ATTACK, "server": {"name": "trimmed_mean", "share": 0.2}},
}
CASE_METHODS = ("fedavg", "fedper", "ditto")


def write_cases(folder, *, seeds=4, alphas=(1.0,), settings=CASES, **info):
    """Runs of one grid with named cases, a run folder for each case."""
    common = {"seeds": seeds, "alphas": alphas, "methods": CASE_METHODS}
    runs = [write_store(folder / name, prefix=name, case=name, **common, **of) for name, of in settings.items()]
    return [change_run(run, **{"cases": list(settings)} | info) for run in runs]


def name_cases(run: Path) -> None:
    """Make a league's tasks of the alphas: below 1 cases of `digits`, else of `synthetic`."""

    def named(cell):
        alpha = cell["settings"]["alpha"]
        return {"case": f"case {alpha}", "dataset": "digits" if alpha < 1 else "synthetic"}

    change_run(run, named)


def change_run(run: Path, settings_of: Callable[[dict[str, Any]], dict[str, Any]] = lambda cell: {}, **info) -> Path:
    """Give a run's cells other settings, by their entries in `run.json`, and that file other fields."""
    content = json.loads((run / "run.json").read_text(encoding="utf-8")) | info
    for cell in content["cells"]:
        cell["settings"] |= settings_of(cell)
        if (run / cell["id"]).is_dir():
            _json(run / cell["id"] / "settings.json", cell["settings"])
    _json(run / "run.json", content)
    return run


def cells_of(run: Path, without: str = "") -> list[dict[str, Any]]:
    """The cells in a run's `run.json`, without those of a label."""
    cells = json.loads((run / "run.json").read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["label"] != without]


def change_status(folder: Path, **status: object) -> None:
    """Change a cell's `status.json`."""
    _json(folder / "status.json", json.loads((folder / "status.json").read_text(encoding="utf-8")) | status)


def cell_id(name: str) -> str:
    """The id of a cell of `write_store`, whose name is for instance `scd-0.1-0`."""
    return hashlib.blake2b(name.encode(), digest_size=8).hexdigest()


def _write_cell(folder: Path, settings: Settings, state: str) -> None:
    folder.mkdir(parents=True)
    _json(folder / "settings.json", settings.model_dump())
    rounds = ROUNDS if state == "done" else ROUNDS // 2
    rng = generator("partition", settings.seed, str(settings.alpha))
    counts = rng.multinomial(60, rng.dirichlet([settings.alpha or 1.0] * CLASSES, size=CLIENTS))
    counts = (counts * rng.uniform(0.3, 3, size=(CLIENTS, 1))).astype(int) + 1
    size = counts.sum(axis=1)
    summary = f"dirichlet({settings.alpha:g}), {CLIENTS} clients, {size.min()} to {size.max()} samples"
    partition = {"hash": f"{settings.seed:04x}{int(settings.alpha * 10):04x}", "summary": summary}
    sizes = {"n_train": size.tolist(), "n_test": size.tolist(), "counts": counts.tolist()}
    _json(folder / "partition.json", {**partition, **sizes})
    _json(folder / "timing.json", {"seconds": 3.25 + settings.seed})
    _json(
        folder / "status.json",
        {
            "state": state,
            "rounds": rounds,
            "total": ROUNDS,
            "reason": "" if state == "done" else "RuntimeError: a <made-up> reason",
            "path": {"device": "cpu", "executor": "cohort"},
            "derived": DERIVED.get(settings.method, []),
            "warnings": [],
            "partition": partition,
        },
    )
    metrics, clients = _evaluations(settings, size, rounds)
    ledger = [(k, 1.5 * k, 1.5 * k, 4e5, 2e4, 4e5, 0, 0, 0) for k in range(1, rounds + 1)]
    for name, rows in {"metrics": metrics, "clients": clients, "ledger": ledger}.items():
        lines = [",".join(map(str, row)) for row in (COLUMNS[name], *rows)]  # much quicker than by pandas
        (folder / f"{name}.csv").write_text("\n".join([*lines, ""]), encoding="utf-8")


def _evaluations(settings: Settings, size: np.ndarray, rounds: int) -> tuple[list, list]:
    """Curves that rise to the method's level; a small alpha is harder for the generic model, easier for the other."""
    heterogeneity = 0.12 if settings.alpha < 0.5 else 0.0
    gm, pm = LEVELS[settings.method]
    rng = generator("evaluation", settings.method, settings.seed, str(settings.alpha))
    metrics, clients = [], []
    for k in range(1, rounds + 1):
        rise = 1 - 0.8 * np.exp(-4 * k / ROUNDS)
        levels = {"gm": (gm - heterogeneity) * rise, "pm": (pm + heterogeneity / 2) * rise}
        for split in ("validation", "test") if settings.protocol == "honest" else ("test",):
            samples = np.maximum(5, size // (5 if split == "validation" else 4))
            for metric, level in levels.items():
                chance = np.clip(level + rng.normal(0, 0.06, CLIENTS), 0, 1)
                correct = rng.binomial(samples, chance)
                clients += [(k, metric, i, split, correct[i], samples[i]) for i in range(CLIENTS)]
                accuracy = correct / samples
                means = {"train_size": np.average(accuracy, weights=size), "equal": accuracy.mean()}
                metrics += [(k, metric, "local", mean, split, "accuracy", value) for mean, value in means.items()]
                if metric == "gm":
                    metrics.append((k, metric, "global", "", split, "accuracy", level + rng.normal(0, 0.005)))
                    metrics.append((k, metric, "global", "", split, "loss", 2 * (1 - level)))
    return metrics, clients


def _json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")


@pytest.fixture(scope="session")
def run(tmp_path_factory) -> Path:
    """A run in which one method diverged once, one failed always at alpha 0.1, and one cell was never started."""
    states = {("fedper", 0.1, seed): "failed" for seed in range(3)}
    states |= {("ditto", 1.0, 1): "diverged", ("scd", 0.1, 2): "missing"}
    return write_store(tmp_path_factory.mktemp("run"), states=states)


@pytest.fixture(scope="session")
def store(run):
    """`run`, loaded."""
    from reports.reading.load import load

    return load([run])


@pytest.fixture
def store_writer():
    """`write_store`, for tests that need a run of their own."""
    return write_store


@pytest.fixture(scope="session")
def report(run) -> Path:
    """The report page of `run`."""
    from reports.page.page import write_report

    return write_report([run])


@pytest.fixture
def drawn(monkeypatch):
    """What is drawn, laid out, as every module hands it to `finish`; no files are made of it."""
    from reports.pictures import canvas

    found = []

    def keep(page, name, title, caption, how=""):
        canvas.lay_out(page)
        found.append(page)
        return canvas.Picture(name, title, caption, b"", b"")

    for module in list(sys.modules.values()):
        if getattr(module, "finish", None) is canvas.finish and module is not canvas:
            monkeypatch.setattr(module, "finish", keep)
    return found


@pytest.fixture
def pdflatex(tmp_path):
    """Compile LaTeX code inside a document; the test is skipped if pdflatex is not installed."""
    if shutil.which("pdflatex") is None:
        pytest.skip("pdflatex is not installed")

    def check(body):
        head = "\\documentclass{article}\\usepackage[T1]{fontenc}\\usepackage{booktabs}\\begin{document}\n"
        (tmp_path / "a.tex").write_text(f"{head}{body}\\end{{document}}\n", encoding="utf-8")
        command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "a.tex"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=PATIENCE)
        assert done.returncode == 0, done.stdout[-2000:]

    return check
