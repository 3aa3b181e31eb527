"""A page for each client, against the run's own tables."""

import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

import bench
from reports.page.client_pages import _folders, write_client_pages
from reports.reading.load import GM, PM, load
from reports.tables.fairness import client_accuracies
from tests.reports.conftest import change_run
from tests.runs.conftest import arrays  # noqa: F401  (a fixture)
from tests.runs.helpers import make_run


@pytest.mark.long
def test_a_client_sees_its_data_its_scores_and_its_gain(arrays: Path, tmp_path: Path) -> None:  # noqa: F811
    """Two seeds on one partition: each client has one page, with means over both."""
    settings = {"rounds": 2, "alphas": [0.3], "seeds": [0, 1], "partition_seed": 5}
    run = make_run(tmp_path / "run", arrays, ["fedavg", "local", "ditto"], **settings)
    pages = sorted((bench.report(run, clients=True).parent / "clients").glob("*/*/index.html"))
    assert [path.parent.name for path in pages] == [f"client-{i}" for i in range(4)]
    store = load([run])
    personal, generic = (
        client_accuracies(store, of).set_index(["row", "client", "seed"])["accuracy"] for of in (PM, GM)
    )
    record = store.cells[0].view.json("partition")
    for client, path in enumerate(pages):
        scores = pd.read_csv(path.parent / "tables" / "scores.csv").set_index(["row", "column"])
        for row in ("fedavg", "ditto"):
            own, alone = personal[row, client], personal["local", client]
            shown = scores.loc[(row, "personalized model")]
            assert (shown["value"], shown["spread"]) == pytest.approx((own.mean(), own.std()), abs=6e-3)
            assert scores.loc[(row, "gain over alone"), "value"] == pytest.approx((own - alone).mean(), abs=6e-3)
            assert scores.loc[(row, "generic model"), "value"] == pytest.approx(generic[row, client].mean(), abs=6e-3)
        data = pd.read_csv(path.parent / "tables" / "data.csv")
        assert data[data["column"] == "this client"]["value"].tolist() == record["counts"][client]
        assert f"trains on {record['n_train'][client]} samples" in path.read_text(encoding="utf-8")


def test_a_seed_that_diverged_counts_at_chance_level(store_writer: Callable[..., Path], tmp_path: Path) -> None:
    """As in all tables: else a client's mean is that of the seeds that went well."""
    states = {("ditto", 1.0, 1): "diverged"}
    run = store_writer(tmp_path / "run", seeds=2, alphas=(1.0,), methods=("ditto", "local"), states=states)
    store = load([change_run(run, lambda _: {"partition_seed": 0})])
    accuracies = client_accuracies(store)
    (first,) = accuracies[(accuracies["row"] == "ditto") & (accuracies["client"] == 0)]["accuracy"]
    page = next(path for path in write_client_pages(store, tmp_path / "report") if path.parent.name == "client-0")
    scores = pd.read_csv(page.parent / "tables" / "scores.csv").set_index(["row", "column"])
    assert scores.loc[("ditto", "personalized model"), "value"] == pytest.approx((first + 10) / 2, abs=6e-3)


def test_names_that_would_be_one_folder_are_two(store_writer: Callable[..., Path], tmp_path: Path) -> None:
    """On disks that know no capital letters, too."""
    store = load([store_writer(tmp_path, seeds=1, alphas=(1.0,), methods=("ditto",))])
    cell = store.cells[0]
    file = cell.view.folder / "partition.json"
    record = json.loads(file.read_text(encoding="utf-8"))
    names = [f"ward {k}" for k in range(len(record["counts"]))]
    names[:4] = ["H 1", "h-1", "H/1", "H 2"]
    file.write_text(json.dumps({**record, "names": names}), encoding="utf-8")
    folders = _folders(cell)
    assert folders[:4] == ["H-1", "h-1-2", "H-1-3", "H-2"]
    assert len({folder.casefold() for folder in folders}) == len(names)
