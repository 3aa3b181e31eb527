"""Series and tokens: from a user's own file or made up, through the engine."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bench.data import TokenShape
from bench.engine.device_data import Pool
from bench.errors import UserError
from bench.federation.cell_data import load_all
from bench.plugin import METHODS
from bench.results.results import CellView
from bench.runs.cell import run_cell
from bench.runs.cell_options import Options
from bench.runs.plan import plan
from bench.settings import Settings
from datasets.markov import chains
from datasets.motion import _rotation
from tests.datasets.helpers import federation, load, load_from, load_npz, seen
from tests.engine.problems import EVERY_METHOD, QUICK, assert_same, everything, needed, run

HERE = Path()
SMALL: dict[str, dict[str, Any]] = {
    "markov": {
        "dataset_options": {"speakers": 4, "samples": 24, "length": 6, "letters": 5},
        "model": "char_lstm",
        "model_options": {"hidden": 5, "embedding": 3},
    },
    "motion": {
        "dataset_options": {"people": 4, "samples": 24, "steps": 16, "activities": 3},
        "model": "har_cnn",
        "model_options": {"hidden": 6, "filters": 4},
    },
}


def settings(name: str, method: str, **changes: Any) -> Settings:
    return Settings(
        method=method, dataset=name, partition="natural", clients=4, rounds=2, lr=0.1, **SMALL[name], **changes
    )


def test_own_series_are_normalised_by_channel(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal([[3.0], [-2.0]], [[1.0], [5.0]], (40, 2, 9))
    data = load_npz(tmp_path, train_series=x, train_labels=np.arange(40) % 2)
    assert data.shape == (2, 9)
    own = x[data.rows][: data.n_train]
    np.testing.assert_allclose(data.mean, own.mean((0, 2)), rtol=1e-6)
    expected = (own - own.mean((0, 2))[:, None]) / own.std((0, 2))[:, None]
    np.testing.assert_allclose(seen(data)[: data.n_train], expected, atol=1e-5)


def test_own_tokens_reach_the_model_as_they_are(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(300, size=(40, 7), dtype=np.uint16)
    x[0, 0] = 299
    data = load_npz(tmp_path, train_tokens=x, train_labels=np.arange(40) % 2, groups=np.arange(40) // 10)
    assert data.shape == TokenShape(7, 300)
    assert data.group_names == ("0", "1", "2", "3")
    found, _ = Pool.of(data, torch.device("cpu"), torch.float32).take(torch.tensor([[3, 1], [2, 0]]))
    assert found.dtype == torch.int64
    np.testing.assert_array_equal(found, x[data.rows][[[3, 1], [2, 0]]])
    with pytest.raises(UserError, match="tokens, which have no `mean` and no `std`"):
        load_from("npz", tmp_path / "mine.npz", mean=[0.5])


def test_who_knows_a_speaker_s_chain_is_right_as_often_as_it_says() -> None:
    """Bayes' rule on 20,000 samples of each of two speakers, and how often each letter follows."""
    data = load("markov", HERE, letters=4, speakers=2, samples=20_000, length=3, own=0.7)
    assert data.shape == TokenShape(3, 4)
    for speaker, chain in enumerate(chains(4, 2, 0.7)):
        own = data.groups == speaker
        last, following = data.x[own, -1], data.y[own]
        best = chain.max(axis=1)[last]
        assert abs((chain.argmax(axis=1)[last] == following).mean() - best.mean()) < 4 * 0.5 / np.sqrt(20_000)
        for letter in range(4):
            seen = np.bincount(following[last == letter], minlength=4) / (last == letter).sum()
            assert np.abs(seen - chain[letter]).max() < 4 * 0.5 / np.sqrt((last == letter).sum())


def test_speakers_differ_by_their_own_share() -> None:
    alike, apart, again = chains(5, 3, 0.0), chains(5, 3, 1.0), chains(5, 3, 1.0)
    np.testing.assert_array_equal(alike[0], alike[1])
    np.testing.assert_allclose(np.stack([alike, apart, chains(5, 3, 0.25)]).sum(axis=-1), 1, atol=1e-12)
    assert np.abs(apart[0] - apart[1]).max() > 0.1
    np.testing.assert_array_equal(apart, again)
    np.testing.assert_allclose(chains(5, 3, 0.25), 0.75 * alike + 0.25 * apart, atol=1e-15)
    assert np.abs(chains(5, 3, 1.0, draw=1) - apart).max() > 0.1


def test_people_wear_their_phones_turned() -> None:
    axis = np.array([2.0, -1.0, 2.0]) / 3
    turn = _rotation(axis, 0.7)
    np.testing.assert_allclose(turn @ turn.T, np.eye(3), atol=1e-12)
    np.testing.assert_allclose(turn @ axis, axis, atol=1e-12)
    assert np.trace(turn) == pytest.approx(1 + 2 * np.cos(0.7))

    def moments(**options: Any) -> list[Any]:
        """Second moments of the axes, a property of activity and person; turning keeps their sum."""
        data = load("motion", HERE, people=2, samples=600, noise=0.0, **options)
        assert (data.shape, data.num_classes) == ((3, 64), 6)
        found = [np.einsum("nit,njt->ij", own, own) for own in (data.x[data.groups == p] for p in (0, 1))]
        return [one / np.trace(one) for one in found]

    first, second = moments()
    assert np.abs(first - second).max() > 0.05
    np.testing.assert_allclose(*moments(turned=0.0), atol=0.02)


FURTHER = [pytest.param(name, marks=pytest.mark.long) for name in ("fedper", "ditto", "fedrep", "fedproto")]


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("method", ["fedavg", "scd", *FURTHER])
def test_executors_agree_on_sequences(name: str, method: str) -> None:
    """To 1e-9 in float64, without a fall-back to the loop."""
    cell = settings(name, method, dtype="float64")
    cohort, alone = (federation(cell, executor) for executor in ("cohort", "sequential"))
    before = {key: value.clone() for key, value in everything(cohort).items()}
    first, second = run(cohort, 2), run(alone, 2)
    assert not cohort.engine.fallbacks
    assert any(not torch.equal(value, before[key]) for key, value in everything(cohort).items() if key in before)
    assert_same(everything(cohort), everything(alone))
    assert [round(row["value"], 7) for row in first.metrics] == [round(row["value"], 7) for row in second.metrics]


def test_recurrent_clients_take_turns_on_a_cpu() -> None:
    """`auto` gives the bytes of one after the other; side by side they are others, as another code computes them."""
    found = {}
    for executor in ("auto", "sequential", "cohort"):
        trained = federation(settings("markov", "fedavg"), executor, device="cpu")
        trained.advance()
        found[executor] = trained.server.state["model"].weights
    assert torch.equal(found["auto"], found["sequential"])
    assert not torch.equal(found["auto"], found["cohort"])


@pytest.mark.long
def test_steps_of_an_lstm_alone_are_not_recorded() -> None:
    """oneDNN's layer cannot be; trying would end in a notice to the user that a backend has failed."""
    cell = settings("markov", "fedavg", steps=510, batch_size=1).model_copy(update={"clients": 1})
    alone = federation(cell, "sequential", device="cpu")
    run(alone, 2)  # what has been called so often is recorded at its next call
    assert (alone.engine.steps, alone.engine.failed, alone.engine.notices) == (1020, [], [])


@pytest.mark.parametrize("method", EVERY_METHOD)
def test_every_method_takes_tokens(method: str) -> None:
    """A round of each, side by side without a fall-back; nothing in a method may take samples for pictures."""
    given = QUICK.get(method, {})
    cell = settings("markov", method, hp=METHODS.get(method).Hyper(**given).model_dump())
    if adapters := needed(method):  # which the LSTM has no layers for
        small = {"model": "transformer", "model_options": {"width": 8, "layers": 1, "heads": 2}}
        cell = Settings.model_validate({**cell.model_dump(), **small, **adapters})
    trained = federation(cell, "cohort", public=load_all(cell)[0].subset(np.arange(12), 12))
    assert all(np.isfinite(row["value"]) for row in run(trained, 1).metrics)
    assert not trained.engine.fallbacks


@pytest.mark.parametrize("name", SMALL)
def test_a_kept_model_predicts_from_raw_sequences(name: str, tmp_path: Path) -> None:
    cell = settings(name, "fedavg")
    status = run_cell(cell, tmp_path, Options(device="cpu", keep="best", checkpoint_seconds=0))
    assert status.state == "done", status.reason
    assert status.backend == {"markov": "eager", "motion": "torchscript"}[name]  # an LSTM's step is never recorded
    view = CellView(tmp_path.name, cell.name, cell, tmp_path, status)
    data, partition, _ = load_all(cell)
    tests = partition.test[0]
    generic, metrics = view.model(client=0), view.table("clients")
    rows = metrics[(metrics["client"] == 0) & (metrics["metric"] == "pm") & (metrics["split"] == "test")]
    with torch.no_grad():
        right = int((generic(torch.from_numpy(data.x[tests])).argmax(1).numpy() == data.y[tests]).sum())
    assert right == rows[rows["round"] == generic.round]["correct"].item()


def test_a_shift_of_labels_goes_with_tokens() -> None:
    plain, shifted = (load_all(settings("markov", "fedavg", shifts=s))[0] for s in ((), ({"name": "concept_shift"},)))
    assert shifted.shape == plain.shape


@pytest.mark.parametrize("name", SMALL)
def test_crops_are_of_images(name: str) -> None:
    with pytest.raises(UserError, match="`augment: crop_flip` needs images, and the samples have shape"):
        plan([settings(name, "fedavg", augment="crop_flip")], HERE, download=False)
