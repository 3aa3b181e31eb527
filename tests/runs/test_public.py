"""Public samples, as a setting of a cell."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bench
from bench.config.validation import check_setting
from bench.errors import UserError
from bench.federation.cell_data import load_dataset, load_partition, load_public
from bench.settings import PrivateTraining, Settings
from tests.runs.conftest import Bench, Cell


def public(cell: Cell, arrays: Path, **more: Any) -> Settings:
    return cell(method="comet", public={"name": "npz", "path": str(arrays), **more})


def test_a_draw_by_the_seed_from_the_training_part(cell: Cell, arrays: Path, tmp_path: Path) -> None:
    settings = public(cell, arrays, size=30)
    found, whole = load_public(settings, tmp_path), load_dataset(settings, tmp_path)
    assert found is not None
    assert len(found.x) == len(found.y) == found.n_train == 30
    rows = {row.tobytes() for row in whole.x[: whole.n_train]}
    assert all(row.tobytes() in rows for row in found.x)
    again = load_public(settings, tmp_path)
    other = load_public(settings.model_copy(update={"seed": 1}), tmp_path)
    assert again is not None
    assert other is not None
    assert np.array_equal(found.x, again.x)
    assert not np.array_equal(found.x, other.x)
    assert load_public(cell(public=None), tmp_path) is None


def test_what_does_not_fit_is_refused(cell: Cell, arrays: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"public size = 500: 'npz' has 144 training samples that"):
        load_public(public(cell, arrays, size=500), tmp_path)
    with pytest.raises(UserError, match=r"'digits' has samples of shape \(1, 8, 8\), the clients' data of \(1, 6, 6\)"):
        load_public(cell(public={"name": "digits"}), tmp_path)


@pytest.mark.parametrize("protocol", ["honest", "paper", "tuning"])
@pytest.mark.parametrize(
    ("partition", "options"), [("classes", {"k": 2}), ("dirichlet", {"shares": [0.3, 0.1, 0.3]}), ("dirichlet", {})]
)
def test_of_the_clients_own_data_nobody_s_samples_are_drawn(
    cell: Cell, arrays: Path, tmp_path: Path, partition: str, options: dict[str, Any], protocol: str
) -> None:
    """If clients hold all training samples, public samples come from these; never from samples that evaluate any
    seed's models."""
    alpha = 1.0 if partition == "dirichlet" else None
    changes = {"partition": partition, "partition_options": options, "alpha": alpha, "protocol": protocol}
    settings = public(cell, arrays).model_copy(update=changes)
    whole = load_dataset(settings, tmp_path)
    judged = settings.model_copy(update={"protocol": "honest"}) if protocol == "tuning" else settings
    found, parts = load_public(settings, tmp_path), load_partition(judged, whole)
    assert found is not None
    lists = [*parts.validation, *parts.test, parts.global_test, parts.kept, *(parts.train if options else [])]
    held = np.unique(np.concatenate(lists))
    rows = [row.tobytes() for row in whole.x]
    assert len(set(rows)) == len(rows)
    drawn = {rows.index(row.tobytes()) for row in found.x}
    assert drawn == set(range(whole.n_train)) - set(held.tolist())
    if protocol == "tuning":
        assert np.array_equal(found.x, load_public(judged, tmp_path).x)


def test_the_clients_training_samples_are_not_public_under_noise(cell: Cell, arrays: Path, tmp_path: Path) -> None:
    """What a server trains on has no noise, and epsilon would not count it."""
    channel = Settings(method="fedavg", channel=check_setting("channel", ["clip", "gaussian"])).channel
    noises: list[dict[str, Any]] = [{"dp_sgd": PrivateTraining()}, {"channel": channel}]
    plain = public(cell, arrays).model_copy(update={"partition": "dirichlet", "alpha": 1.0, "partition_options": {}})
    assert load_public(plain, tmp_path) is not None
    for noise in noises:
        with pytest.raises(UserError, match=r"public: clients train on all .* take another public data set, or a part"):
            load_public(plain.model_copy(update=noise), tmp_path)
        unheld = {**noise, "partition_options": {"shares": [0.3, 0.1, 0.3]}}
        assert load_public(plain.model_copy(update=unheld), tmp_path) is not None


def test_the_clients_own_file_read_in_another_way_is_refused(cell: Cell, tmp_path: Path) -> None:
    """Other rows would be kept for tests, so that samples on which clients are tested could be public."""
    rng = np.random.default_rng(0)
    rows = [f"{'ab'[k % 2]},{rng.normal():.4f},{rng.normal():.4f},{'no' if k % 3 else 'yes'}" for k in range(120)]
    (tmp_path / "sites.csv").write_text("\n".join(["site,x,z,ill", *rows]) + "\n", encoding="utf-8")
    options = {"path": str(tmp_path / "sites.csv"), "label_column": "ill", "site_column": "site"}
    own: dict[str, Any] = {"dataset": "csv", "dataset_options": options, "alpha": None, "clients": 2}
    own["partition"] = "natural"
    assert load_public(cell(**own, public={"name": "csv", **options, "size": 5}), tmp_path) is not None
    other = {"name": "csv", "path": options["path"], "label_column": "ill", "leave_out": ["site"]}
    with pytest.raises(UserError, match=r"is the clients' own file, .*, read in another way"):
        load_public(cell(**own, public=other), tmp_path)


@pytest.mark.parametrize("whose", ["the folder", "a file"])
def test_a_file_of_the_clients_folder_or_the_reverse_is_refused(cell: Cell, tmp_path: Path, whose: str) -> None:
    """Rows with a gap count, too, though what fills it depends on the other rows that are read."""
    rng = np.random.default_rng(0)
    (tmp_path / "sites").mkdir()
    for site in "abc":
        rows = [f"{rng.normal():.4f},{'' if k % 2 else k},{'no' if k % 3 else 'yes'}" for k in range(40)]
        (tmp_path / "sites" / f"{site}.csv").write_text("\n".join(["x,z,ill", *rows]) + "\n", encoding="utf-8")
    paths = [str(tmp_path / "sites"), str(tmp_path / "sites" / "b.csv")]
    clients, public = paths if whose == "the folder" else reversed(paths)
    theirs, others = ({"path": path, "label_column": "ill"} for path in (clients, public))
    own: dict[str, Any] = {"dataset": "csv", "partition": "iid", "alpha": None, "clients": 2}
    settings = cell(**own, dataset_options=theirs, public={"name": "csv", **others})
    read = bench.load_dataset(cell(dataset="csv", dataset_options=others), tmp_path)
    shared = read.n_train if read.groups is None else int((read.groups[: read.n_train] == 1).sum())  # b is the second
    with pytest.raises(UserError, match=rf"read in another way: {shared} of its {read.n_train} training samples"):
        load_public(settings, tmp_path)


def test_a_built_in_set_with_other_options_is_refused_only_where_it_has_samples_of_the_clients(
    cell: Cell, tmp_path: Path
) -> None:
    """A device draws the same inputs, however many devices there are and whatever labels them."""
    own: dict[str, Any] = {"dataset": "synthetic", "dataset_options": {"devices": 5}, "partition": "natural"}
    own |= {"alpha": None, "clients": 5}
    for others in ({"devices": 3}, {"devices": 3, "model_variance": 2.0}):
        with pytest.raises(UserError, match=r"'synthetic' is the clients' data read in another way: (\d+) of its \1 "):
            load_public(cell(**own, public={"name": "synthetic", **others}), tmp_path)
    for others in ({"draw": 1}, {"input_variance": 2.0}):
        assert load_public(cell(**own, public={"name": "synthetic", "devices": 3, **others}), tmp_path) is not None


def test_of_short_texts_another_draw_is_other_data(cell: Cell, tmp_path: Path) -> None:
    """Though some of them are equal by chance."""
    texts: dict[str, Any] = {"speakers": 3, "length": 4}
    own: dict[str, Any] = {"dataset": "markov", "dataset_options": texts, "partition": "natural", "clients": 3}
    settings = cell(**own, alpha=None, public={"name": "markov", **texts, "draw": 1})
    public, whole = load_public(settings, tmp_path), load_dataset(settings, tmp_path)
    assert public is not None
    assert {row.tobytes() for row in public.x} & {row.tobytes() for row in whole.x}


def test_a_copy_of_a_built_in_set_is_refused(cell: Cell, tmp_path: Path) -> None:
    digits = bench.load_dataset(cell(dataset="digits", dataset_options={}), tmp_path)
    np.savez(tmp_path / "copy.npz", train_images=digits.x[-100:, 0], train_labels=digits.y[-100:] % 2)
    settings = cell(dataset="digits", dataset_options={}, public={"name": "npz", "path": str(tmp_path / "copy.npz")})
    with pytest.raises(
        UserError, match=r"the public set 'npz' is the clients' data read in another way: (\d+) of its \1"
    ):
        load_public(settings, tmp_path)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (None, "the method 'comet' needs public samples; add for instance"),
        ({"name": "npx"}, "unknown data set 'npx'. Did you mean 'npz'?"),
        ({"name": "digits", "sise": 3}, "sise"),
        ({"name": "digits", "size": 0}, "public"),
    ],
)
def test_mistakes_are_found_before_anything_is_written(
    bench_here: Bench, grid: Callable[..., Path], tmp_path: Path, key: Any, message: str
) -> None:
    file = grid(methods=["comet"], **({} if key is None else {"public": key}))
    done = bench_here("run", "--grid", file, "--out", tmp_path / "run", code=2)
    assert message in done.stderr
    assert not (tmp_path / "run").exists()
