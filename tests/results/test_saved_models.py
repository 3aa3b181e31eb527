"""The kept models of finished cells predict, from raw samples, what the cell's own evaluation counted."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from bench.errors import UserError
from bench.exported import load_model
from bench.federation.cell_data import load_all
from bench.federation.federation import Federation
from bench.method import METHODS, Client, Method, Params, Program, Server, State, Upload
from bench.results.results import CellView
from bench.runs.cell import run_cell
from bench.runs.cell_options import Keep, Options
from bench.settings import Settings
from bench.store.store import read_status
from tests.engine import problems  # noqa: F401 (registers a model with BatchNorm)
from tests.results.saved import Grid, finished, rounds, scored_tests
from tests.runs.conftest import Bench
from tests.runs.helpers import stop_after

Cell = Callable[..., Settings]


def assert_predicts(cell: CellView, at: dict[str, int]) -> None:
    """Check the numbers of correct predictions, on each client's own tests and for the generic model on all, with
    the tables."""
    dataset, partition, _ = load_all(cell.settings)
    x, y = torch.from_numpy(dataset.x), torch.from_numpy(dataset.y)
    for row in (row for metric, row in scored_tests(cell, at) if metric == "pm"):
        model, positions = cell.model(client=row.client), partition.test[row.client]
        assert (not model.training, model.round) == (True, at["pm"])
        with torch.no_grad():
            assert int((model(x[positions]).argmax(1) == y[positions]).sum()) == row.correct
    generic, metrics = cell.model(), cell.table("metrics")
    with torch.no_grad():
        right = (generic(x[partition.global_test]).argmax(1) == y[partition.global_test]).double().mean()
    wanted = (metrics["round"] == at["gm"]) & (metrics["metric"] == "gm") & (metrics["on"] == "global")
    accuracy = metrics[wanted & (metrics["split"] == "test") & (metrics["quantity"] == "accuracy")]["value"]
    assert (generic.round, right) == (at["gm"], pytest.approx(accuracy.item(), abs=1e-12))


NETWORKS: dict[str, dict[str, object]] = {
    "fedavg": {"alpha": 0.2},  # trains only the generic model
    "local": {"alpha": 0.2},  # trains only personalized models
    "ditto": {"alpha": 0.2, "participation": 0.5},
    "finetune": {"alpha": 0.2},  # its personalized models are trained only when they are asked for
    "fedrod": {"model": "mlp", "model_options": {"hidden": 8}},  # a network that the method defines
    "fedem": {},  # a personalized model that consists of several networks
    "scd": {"model": "test_norm", "batchnorm": "local", "participation": 0.5},  # statistics that stay with the clients
    "fedper": {"model": "test_norm", "protocol": "paper"},
    "fedprox": {"model": "test_norm", "frozen": ("inner", "norm")},  # a body that all models share
    "feddbe": {"model": "test_norm", "frozen": ("inner", "norm")},  # such a body before two parts that are composed
    "fedem_frozen": {"model": "test_norm", "frozen": ("norm",)},  # several networks that share a layer
    "fedbn": {"model": "test_norm", "precision": "bf16", "dtype": "float32"},
    **{name: {"model": "mlp", "model_options": {"hidden": 8}} for name in ("fedpac", "fedcp", "fedproto")},
    "apfl": {},
}


@pytest.mark.parametrize("keep", ["all", "best"])
@pytest.mark.parametrize("method", NETWORKS)
@pytest.mark.long
def test_a_kept_model_predicts_what_was_counted(cell: Cell, tmp_path: Path, method: str, keep: Keep) -> None:
    """An exported one gives the kept one's logits on raw samples; a body that all share is the same in all files."""
    settings: dict[str, object] = {"method": method.partition("_")[0], "dtype": "float64", **NETWORKS[method]}
    folder = tmp_path / "0123456789abcdef"
    done = finished(cell(**settings), folder, keep)
    reported = rounds(done)
    if method != "fedbn":  # whose outputs are rounded to bf16 in training alone
        assert_predicts(done, reported if keep == "best" else dict.fromkeys(reported, done.settings.rounds))
    assert (folder / "models").exists() == (keep == "best")
    models, notes = done.export(tmp_path / "exported")
    assert {path.name for path in models.values()} == {path.name for path in (tmp_path / "exported").glob("*.pt")}
    generic = any("the file of each site is the generic one" in note for note in notes)
    assert generic == (method in ("fedavg", "fedprox"))
    x = load_all(done.settings)[0].x[:70]
    np.save(tmp_path / "x.npy", x)
    for name, file in models.items():
        exported, kept = load_model(file), done.model(None if name == "generic" else int(name.removeprefix("client-")))
        with torch.no_grad():
            torch.testing.assert_close(exported(torch.from_numpy(x)), kept(torch.from_numpy(x)))
    assert len(exported.predict(tmp_path / "x.npy").table) == 70


def test_the_reported_round_need_not_be_the_last(cell: Cell, tmp_path: Path) -> None:
    """With this learning rate the accuracy falls again, so that the kept models are those of an earlier round."""
    done = finished(cell(lr=3.0, alpha=0.2, rounds=8, seed=2), tmp_path, "best")
    assert rounds(done)["gm"] < 8
    assert_predicts(done, rounds(done))


@pytest.mark.long
def test_a_stopped_cell_keeps_the_same_models(cell: Cell, tmp_path: Path) -> None:
    """The cell is stopped twice; kept models of a round after the last checkpoint, as a kill leaves them, are
    replaced."""
    settings, options = (
        cell(method="ditto", lr=3.0, alpha=0.2),
        Options(device="cpu", keep="best", checkpoint_seconds=0),
    )
    whole = finished(settings, tmp_path / "whole", "best")
    for rounds_each in (2, 1, 9):
        run_cell(settings, tmp_path / "parts", options, stop=stop_after(rounds_each))
    parts = CellView("parts", "ditto", settings, tmp_path / "parts", read_status(tmp_path / "parts"))
    for client in (None, 0, 3):
        one, other = whole.model(client), parts.model(client)
        assert all(torch.equal(value, other.state_dict()[name]) for name, value in one.state_dict().items())


class Scaled(Method):
    """A method whose generic model follows from the round and from the sizes that the clients have at the time."""

    mean_of = ("model",)

    def client_round(self, client: Client, down: State) -> Program:
        yield Upload({"model": down["model"]})

    def generic(self, server: Server) -> Params:
        w: Params = server.state["model"]
        return w.with_weights(w.weights * (server.round + sum(server.sizes.values())))


@pytest.mark.parametrize("keep", ["server", "all"])
def test_a_model_that_follows_from_the_round_is_that_of_the_last_one(
    cell: Cell, tmp_path: Path, keep: Keep, monkeypatch: pytest.MonkeyPatch
) -> None:
    METHODS.names()
    monkeypatch.setitem(METHODS._items, "scaled", Scaled)
    settings = cell(method="scaled", rounds=3, timeline=({"round": 1, "leave": (1, 1)},))
    straight = Federation.of(settings)
    for _ in range(3):
        straight.advance()
    scaled = straight.evaluator.generic(3, {})
    assert scaled is not None
    kept = finished(settings, tmp_path, keep).model().state_dict()
    for name, tensor in scaled.tensors().items():
        (value,) = (value for path, value in kept.items() if path.endswith(name))
        assert torch.equal(value, tensor)


@pytest.mark.parametrize(
    ("keep", "client", "message"),
    [
        ("none", None, "no model was kept. Run it again with its models: bench run .* --fresh --keep best"),
        ("none", 1, "no model was kept"),
        ("server", 1, "`--keep server` kept nothing of the clients"),
        ("all", 9, r"trained no client 9; there are \[0, 1, 2, 3\]"),
    ],
)
def test_what_was_not_kept_is_said_in_a_line(
    cell: Cell, tmp_path: Path, keep: Keep, client: int | None, message: str
) -> None:
    done = finished(cell(method="ditto", rounds=1), tmp_path, keep)
    with pytest.raises(UserError, match=message):
        done.model(client)


def test_an_unfinished_cell_has_no_model_yet(cell: Cell, tmp_path: Path) -> None:
    run_cell(cell(), tmp_path, Options(device="cpu", keep="best"), stop=stop_after(1))
    with pytest.raises(UserError, match="is interrupted, not done"):
        CellView("", "fedavg", cell(), tmp_path, read_status(tmp_path)).model()


@pytest.mark.long
def test_keep_comes_too_late_for_finished_cells(bench_here: Bench, grid: Grid, tmp_path: Path) -> None:
    """The command says so, and how to get the models; once the models are there, it says nothing."""
    common = ("run", "--grid", grid(methods=["fedavg"], rounds=2), "--out", tmp_path / "run", "--device", "cpu")
    said = "1 finished cells have nothing of --keep best, as they ran without it: --fresh runs them again"
    for more, expected in (
        ((), ""), (("--keep", "best"), said), (("--keep", "best", "--fresh"), ""), (("--keep", "best"), ""),
        (("--keep", "all"), "nothing of --keep all"),
    ):  # fmt: skip
        text = " ".join(bench_here(*common, *more).stderr.split())
        assert expected in text
        assert ("of --keep" in text) == bool(expected)
