"""Series and tokens: from a user's own file or made up, through the engine."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bench.data import Dataset, TokenShape
from bench.engine.device_data import Pool
from bench.errors import UserError
from bench.federation.cell_data import load_all
from bench.federation.federation import Federation
from bench.plugin import DATASETS, METHODS
from bench.results.results import CellView
from bench.runs.cell import run_cell
from bench.runs.cell_options import Options
from bench.runs.plan import plan
from bench.settings import Settings
from datasets.markov import chains
from datasets.motion import _rotation
from tests.engine.problems import EVERY_METHOD, QUICK, needed

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


def load(name: str, **options: Any) -> Dataset:
    data: Dataset = DATASETS.get(name)(data_root=HERE, download=False, **options)
    return data


def settings(name: str, method: str, **changes: Any) -> Settings:
    return Settings(
        method=method, dataset=name, partition="natural", clients=4, rounds=2, lr=0.1, **SMALL[name], **changes
    )


def saved(folder: Path, **arrays: Any) -> Dataset:
    np.savez(folder / "own.npz", **arrays)
    return load("npz", path=str(folder / "own.npz"))


def test_own_series_are_normalised_by_channel(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal([[3.0], [-2.0]], [[1.0], [5.0]], (40, 2, 9))
    data = saved(tmp_path, train_series=x, train_labels=np.arange(40) % 2)
    assert data.shape == (2, 9)
    own = x[data.rows][: data.n_train]
    np.testing.assert_allclose(data.mean, own.mean((0, 2)), rtol=1e-6)
    found, _ = Pool.of(data, torch.device("cpu"), torch.float64).take(torch.arange(data.n_train))
    np.testing.assert_allclose(found, (own - own.mean((0, 2))[:, None]) / own.std((0, 2))[:, None], atol=1e-5)


def test_own_tokens_reach_the_model_as_they_are(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(300, size=(40, 7), dtype=np.uint16)
    x[0, 0] = 299
    data = saved(tmp_path, train_tokens=x, train_labels=np.arange(40) % 2, groups=np.arange(40) // 10)
    assert data.shape == TokenShape(7, 300)
    assert data.group_names == ("0", "1", "2", "3")
    found, _ = Pool.of(data, torch.device("cpu"), torch.float32).take(torch.tensor([[3, 1], [2, 0]]))
    assert found.dtype == torch.int64
    np.testing.assert_array_equal(found, x[data.rows][[[3, 1], [2, 0]]])


Y = np.zeros(4, int)
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "two kinds": ({"train_series": np.zeros((4, 1, 9)), "train_tokens": np.zeros((4, 9), int)}, "has 2 of the arrays"),
    "integer series": ({"train_series": np.zeros((4, 1, 9), int)}, r"should be floating \[n, channels, time\]"),
    "flat series": ({"train_series": np.zeros((4, 9))}, r"should be floating \[n, channels, time\]"),
    "NaN": ({"train_series": np.full((4, 1, 9), np.nan)}, "NaN"),
    "floating tokens": ({"train_tokens": np.zeros((4, 9))}, "integer token numbers"),
    "negative tokens": ({"train_tokens": np.full((4, 9), -1)}, "tokens from -1 to -1; they should be numbers from 0"),
    "huge tokens": ({"train_tokens": np.full((4, 9), 2**40)}, "below 1,000,000"),
    "ragged tokens": ({"train_tokens": np.array([[1], [1, 2], [], []], dtype=object)}, "Python objects"),
    "another length": (
        {"train_tokens": Y[:, None] + [1, 2], "test_tokens": Y[:, None], "test_labels": Y},
        r"'test_tokens' holds samples of int32 \(1,\), 'train_tokens' of int32 \(2,\)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_sequences_that_do_not_fit_are_refused(tmp_path: Path, case: str) -> None:
    arrays, message = BAD[case]
    with pytest.raises(UserError, match=message):
        saved(tmp_path, train_labels=Y, **arrays)


def test_tokens_take_no_normalisation(tmp_path: Path) -> None:
    saved(tmp_path, train_tokens=Y[:, None], train_labels=Y)
    with pytest.raises(UserError, match="tokens, which have no `mean` and no `std`"):
        load("npz", path=str(tmp_path / "own.npz"), mean=[0.5])


def test_who_knows_a_speaker_s_chain_is_right_as_often_as_it_says() -> None:
    """Bayes' rule on 20,000 samples of each of two speakers, and how often each letter follows."""
    data = load("markov", letters=4, speakers=2, samples=20_000, length=3, own=0.7)
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
    data = load("motion", people=2, samples=600, noise=0.0)
    assert (data.shape, data.num_classes) == ((3, 64), 6)
    # The axes' second moments are a property of activity and person; turning keeps their sum up to gain and sampling.
    moments = [np.einsum("nit,njt->ij", one, one) / len(one) / 64 for one in (data.x[data.groups == p] for p in (0, 1))]
    assert np.abs(moments[0] / np.trace(moments[0]) - moments[1] / np.trace(moments[1])).max() > 0.05
    straight = load("motion", people=2, samples=600, noise=0.0, turned=0.0)
    moments = [
        np.einsum("nit,njt->ij", one, one) / len(one) / 64 for one in (straight.x[straight.groups == p] for p in (0, 1))
    ]
    np.testing.assert_allclose(*[one / np.trace(one) for one in moments], atol=0.02)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize(
    "method",
    [
        "fedavg",
        "scd",
        *(pytest.param(one, marks=pytest.mark.long) for one in ("fedper", "ditto", "fedrep", "fedproto")),
    ],
)
def test_executors_agree_on_sequences(name: str, method: str) -> None:
    """To 1e-9 in float64, without a fall-back to the loop."""
    found = []
    for executor in ("sequential", "cohort"):
        cell = settings(name, method, dtype="float64")
        data, partition, _ = load_all(cell)
        federation = Federation(cell, dataset=data, partition=partition, public=None, executor=executor)  # type: ignore[arg-type]
        before = {key: value.clone() for key, value in federation.state()[0].items()}
        federation.advance()
        federation.advance()
        assert not federation.engine.fallbacks
        found.append((federation.state()[0], federation.evaluate().metrics))
        assert any(not torch.equal(value, before[key]) for key, value in found[-1][0].items() if key in before)
    assert found[0][0].keys() == found[1][0].keys()
    for key, value in found[0][0].items():
        torch.testing.assert_close(value, found[1][0][key], rtol=1e-9, atol=1e-9)
    assert [round(row["value"], 7) for row in found[0][1]] == [round(row["value"], 7) for row in found[1][1]]


def test_recurrent_clients_take_turns_on_a_cpu() -> None:
    """`auto` gives the bytes of one after the other; side by side they are others, as another code computes them."""
    cell = settings("markov", "fedavg")
    data, partition, _ = load_all(cell)
    found = {}
    for executor in ("auto", "sequential", "cohort"):
        federation = Federation(cell, dataset=data, partition=partition, public=None, device="cpu", executor=executor)  # type: ignore[arg-type]
        federation.advance()
        found[executor] = federation.server.state["model"].weights
    assert torch.equal(found["auto"], found["sequential"])
    assert not torch.equal(found["auto"], found["cohort"])


@pytest.mark.long
def test_steps_of_an_lstm_alone_are_not_recorded() -> None:
    """oneDNN's layer cannot be; trying would end in a notice to the user that a backend has failed."""
    cell = settings("markov", "fedavg", steps=510, batch_size=1).model_copy(update={"clients": 1})
    data, partition, _ = load_all(cell)
    federation = Federation(cell, dataset=data, partition=partition, public=None, device="cpu", executor="sequential")
    federation.advance()
    federation.advance()  # what has been called so often is recorded at its next call
    assert (federation.engine.steps, federation.engine.failed, federation.engine.notices) == (1020, [], [])


@pytest.mark.parametrize("method", EVERY_METHOD)
def test_every_method_takes_tokens(method: str) -> None:
    """A round of each, side by side without a fall-back; nothing in a method may take samples for pictures."""
    given = QUICK.get(method, {})
    cell = settings("markov", method, hp=METHODS.get(method).Hyper(**given).model_dump())
    if adapters := needed(method):  # which the LSTM has no layers for
        small = {"model": "transformer", "model_options": {"width": 8, "layers": 1, "heads": 2}}
        cell = Settings.model_validate({**cell.model_dump(), **small, **adapters})
    data, partition, _ = load_all(cell)
    public = data.subset(np.arange(12), 12)
    federation = Federation(cell, dataset=data, partition=partition, public=public, executor="cohort")
    federation.advance()
    assert not federation.engine.fallbacks
    assert all(np.isfinite(row["value"]) for row in federation.evaluate().metrics)


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


@pytest.mark.parametrize(("shift", "words"), [("rotation", "images"), ("corruption", "images or numbers")])
def test_a_shift_of_pictures_is_refused(shift: str, words: str) -> None:
    kinds = {"kinds": ["none", "noise"]} if shift == "corruption" else {}
    cell = settings("markov", "fedavg", shifts=({"name": shift, **kinds},))
    with pytest.raises(UserError, match=f"shift '{shift}' needs {words}"):
        load_all(cell)


@pytest.mark.parametrize("name", SMALL)
def test_crops_are_of_images(name: str) -> None:
    with pytest.raises(UserError, match="`augment: crop_flip` needs images, and the samples have shape"):
        plan([settings(name, "fedavg", augment="crop_flip")], HERE, download=False)
