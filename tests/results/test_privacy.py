"""What noise is worth, beside accuracies: in the summary, in the report, and in the files of a cell."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from bench.results.privacy import epsilon_text, privacy_notes
from bench.results.results import load_run
from reports.page.page import write_report

Bench = Callable[..., "subprocess.CompletedProcess[str]"]

CLIP = {"name": "clip", "norm": 1.0}
CHANNELS: list[list[Any]] = [[], [CLIP, {"name": "gaussian"}], [CLIP, {"name": "gaussian", "noise": 0.0}]]


def test_the_largest_epsilon_is_shown() -> None:
    assert epsilon_text([1.0, float("nan"), 2.345]) == "2.35"
    assert epsilon_text([2.3411]) == "2.35", "a bound is rounded up"
    assert epsilon_text([1.1, 0.57]) == "1.10"
    assert epsilon_text([1.0, float("inf")]) == "∞"
    assert epsilon_text([float("nan")]) == ""


def test_rows_of_one_promise_share_a_note() -> None:
    statement = {
        "protects": "client", "adjacency": "a client, or another", "delta": 1e-5, "accountant": "accountant 1.6.0",
        "sampling": "none", "unprotected": ["this", "that"],
    }  # fmt: skip
    notes = privacy_notes([("fedavg", [statement]), ("ditto", [{**statement, "delta": 1e-6}]), ("fedper", [statement])])
    text = "ε protects a client (a client, or another, δ = 1e-05, accountant 1.6.0). Not protected: this; that"
    assert notes == [f"fedavg, fedper: {text}", f"ditto: {text.replace('1e-05', '1e-06')}"]
    more = {**statement, "unprotected": ["this", "personal models", "that"]}
    assert privacy_notes([("fedavg", [statement]), ("ditto", [more])]) == [
        f"fedavg, ditto: {text}. Nor, in ditto: personal models"
    ]


@pytest.mark.long
def test_epsilon_stands_beside_accuracies(bench: Bench, grid: Callable[..., Path], tmp_path: Path) -> None:
    """By the command line: what it prints after a run, `bench results`, the report, a file that was changed."""
    cells = [
        {"method": m, "label": f"{m} {i}", "channel": c} for m in ("fedavg", "ditto") for i, c in enumerate(CHANNELS)
    ]
    cells.append({"method": "fedavg", "label": "trained", "dp_sgd": {"noise": 1.0}})
    content = yaml.safe_load(grid(rounds=2).read_text())
    ((options, alpha), seeds) = (content.pop(key)[0] for key in ("datasets", "alphas")), content.pop("seeds")
    common = {**content, "dataset": options.pop("name"), "dataset_options": options, "alpha": alpha, "seeds": seeds}
    file = tmp_path / "listed.yaml"
    file.write_text(yaml.safe_dump({**common, "cells": cells}))
    ran = bench("run", "--grid", file, "--out", "run").stdout
    read = bench("results", "run").stdout
    view = load_run(tmp_path / "run")
    for printed in (ran, read, repr(view), view._repr_html_()):
        for text in (
            "ε protects a sample (a sample of a client, or that sample left out",
            "∞",
            "Not protected: single uploads",
            "personalized models, each trained on its client",
        ):
            assert text in " ".join(printed.split()), text
        assert printed.count("ε") >= 3, "two columns and the note"
    assert all(title in view._repr_html_() for title in ("ε client", "ε sample"))  # a narrow terminal breaks titles
    worth = {epsilon for _, epsilon in sorted({(c, str(e)) for c, e in zip(
        view.results["cell"], view.results["epsilon_client"], strict=True)})}  # fmt: skip
    assert {"nan", "inf"} < worth
    assert len(worth) == 3, "two rounds of the same noise are worth the same, whatever the method"
    page = write_report([tmp_path / "run"])
    main = (page.parent / "main.md").read_text()
    assert main.count("∞") == 2
    assert "ε client" in main.splitlines()[2]
    assert r"$\varepsilon$ client" in (page.parent / "main.tex").read_text()
    assert "Not protected: single uploads" in page.read_text()
    noisy = next(cell for cell in view.cells if cell.privacy and cell.privacy[0]["epsilon"])
    record = noisy.folder / "privacy.json"
    record.write_text(record.read_text().replace(json.dumps(noisy.privacy[0]["epsilon"]), "0.1"))
    (changed,) = (cell for cell in load_run(tmp_path / "run").cells if cell.id == noisy.id)
    assert changed.status.state == "interrupted"
    assert "privacy.json" in changed.status.reason
