"""What a cell's identity depends on, and what it does not."""

import hashlib
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from bench.config import identity
from bench.config.checked import CheckedSettings
from bench.config.digests import code_digest, content
from bench.config.grid import grid_of, load_grid
from bench.config.identity import cell_id, declared_checksum
from bench.data import Split
from bench.errors import UserError
from bench.federation import cell_data
from bench.plugin import ATTACKS, CHANNELS, DATASETS, METHODS, MODELS, PARTITIONS, SERVER_RULES, SHIFTS
from bench.profiles import PRESETS
from bench.runs.plan import plan
from bench.settings import (
    AttackPart,
    OperationPart,
    ServerPart,
    Settings,
    ShiftPart,
)

CELL = Settings(method="plain", alpha=0.5)

CHANGED: dict[str, Any] = {
    "method": "toy",
    "hp": {"tau": 0.2},
    "dataset": "npz",
    "dataset_options": {"mean": [0.5]},
    "partition_options": {"x": 1},
    "normalise": "per_client",
    "alpha": 0.6,
    "protocol": "paper",
    "validation_share": 0.1,
    "model": "logistic",
    "client_models": ["mlp", "logistic"],
    "pretrained": "weights.pth",
    "frozen": ["body"],
    "augment": "crop_flip",
    "batchnorm": "local",
    "dtype": "float64",
    "precision": "tf32",
    "new_client_start": "generic",
    "unselected": "broadcast",
    "unselected_steps": 7,
    "new_clients": 3,
    "epochs": 2,
    "steps": 3,
    "batch_size": 11,
    "lr": 0.02,
    "lr_decay": 0.9,
    "momentum": 0.5,
    "nesterov": True,
    "weight_decay": 0.1,
    "grad_clip": 1.0,
    "wait_free": False,
    "pm_until_broadcast": True,
    "eval_every": 2,
}
PRESENTATION = {"label": "another", "case": "another", "metrics": ["ece"], "select_by": "loss", "tests": ["global"]}


def test_every_setting_is_here() -> None:
    assert CHANGED.keys() | RANDOM.keys() | PRESENTATION.keys() == Settings.model_fields.keys()


@pytest.mark.parametrize("key", CHANGED)
def test_every_scientific_setting_counts(key: str) -> None:
    other = Settings.model_validate(CELL.model_dump() | {key: CHANGED[key]})
    assert cell_id(other, "data") != cell_id(CELL, "data")


@pytest.mark.parametrize("key", PRESENTATION)
def test_names_do_not_count(key: str) -> None:
    other = Settings.model_validate(CELL.model_dump() | {key: PRESENTATION[key]})
    assert cell_id(other, "data") == cell_id(CELL, "data")


@pytest.mark.parametrize("spelled", [{"name": "gaussian"}, {"name": "gaussian", "on": "sum", "noise": 2.0}])
def test_poisson_is_the_default_where_noise_is_on_a_sum_of_some_clients(spelled: dict[str, Any]) -> None:
    """It stands in the settings, so that a cell that names it is the same, and one that names another is another."""
    noisy: dict[str, Any] = {"method": "fedavg", "participation": 0.5, "channel": [{"name": "clip"}, spelled]}
    default = Settings.model_validate(noisy)
    assert default.model_dump()["selection"] == "poisson"
    named, fixed = (Settings.model_validate({**noisy, "selection": name}) for name in ("poisson", "uniform"))
    assert cell_id(default, "data") == cell_id(named, "data") != cell_id(fixed, "data")
    assert Settings.model_validate(fixed.model_dump()).selection == "uniform"
    for others in ({"participation": 1.0}, {"channel": [{"name": "clip"}]}, {"channel": [{**spelled, "on": "each"}]}):
        assert Settings.model_validate({**noisy, **others}).selection == "uniform"


OWN = '''
"""All that may be a user's own."""
import numpy as np
from datasets.assemble import assemble
from bench.data import Split
from . import helper
from someone_elses.inner import depth


class Mine:
    """Says what it is."""

    def broadcast(self, x):
        # the reason
        return helper.double(x) + depth


def data(*, data_root, download, shuffled=False):
    labels = np.arange(40) % 2
    return assemble("own", np.ones((40, 3), np.float32), labels, 30, mean=[0] * 3, std=[1] * 3)


def halves(dataset, *, clients, seed):
    return Split([np.arange(0, 15), np.arange(15, 30)])


def net(shape, classes):
    return None
'''
PARTS: dict[str, Any] = {
    **dict.fromkeys(("method", "dataset", "partition", "model"), "own"),
    "server": ServerPart(name="own"),
    "shifts": (ShiftPart(name="own"),),
    "channel": (OperationPart(name="own"),),
    "attack": AttackPart(name="own"),
}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file of the user's own in a package, with modules that it imports and one that it does not."""
    folder = tmp_path / "someone_elses"
    (folder / "inner").mkdir(parents=True)
    for name, text in {
        "__init__.py": "",
        "own.py": OWN,
        "helper.py": "def double(x):\n    return 2 * x\n",
        "inner/__init__.py": "from someone_elses.inner.deep import depth\n",
        "inner/deep.py": "depth = 1\n",
        "unrelated.py": "x = 1\n",
    }.items():
        (folder / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    import someone_elses.own as own  # type: ignore[import-not-found]  # written above

    items: dict[Any, Any] = {DATASETS: own.data, PARTITIONS: own.halves, MODELS: own.net}
    for registry in (METHODS, SERVER_RULES, SHIFTS, CHANNELS, ATTACKS, *items):
        registry.names()
        monkeypatch.setitem(registry._items, "own", items.get(registry, own.Mine))
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == "someone_elses"]:
        del sys.modules[name]


@pytest.mark.parametrize("key", PARTS)
@pytest.mark.parametrize(
    ("file", "old", "new", "same"),
    [
        ("own.py", "# the reason", "# another reason\n", True),
        ("own.py", "Says what it is.", "Says something else.", True),
        ("own.py", '"""All that may be a user\'s own."""', "", True),
        ("own.py", "+ depth", "+ (\n            depth\n        )", True),
        ("own.py", "+ depth", "- depth", False),
        ("own.py", "def broadcast(self, x)", "def broadcast(self, x=None)", False),
        ("own.py", "15, 30", "16, 30", False),
        ("helper.py", "2 * x", "3 * x", False),
        ("helper.py", "def double", "# by two\ndef double", True),
        ("inner/deep.py", "1", "2", False),
        ("unrelated.py", "1", "2", True),
    ],
)
def test_code_of_own_parts_counts_and_comments_do_not(
    package: Path, key: str, file: str, old: str, new: str, same: bool
) -> None:
    """In their file, or in one that it imports; for the cells that have the part, and for no others."""
    cell = CELL.model_copy(update={key: PARTS[key]})
    before, other = cell_id(cell, "data"), cell_id(CELL, "data")
    text = (package / file).read_text()
    assert old in text
    (package / file).write_text(text.replace(old, new))
    assert (cell_id(cell, "data") == before) == same
    assert cell_id(CELL, "data") == other


@pytest.mark.usefixtures("package")
def test_samples_and_lists_of_own_data_sets_and_partitions_count(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also where their code stays and what it reads changes: labels that come from elsewhere, other lists."""
    module = sys.modules["someone_elses.own"]
    cell = CELL.model_copy(update={"dataset": "own", "partition": "own", "alpha": None, "clients": 2})

    def planned() -> str:
        cell_data._loaded.cache_clear()
        return plan([cell], tmp_path, download=False)[0].id

    before = planned()
    assert planned() == before
    with monkeypatch.context() as changed:
        changed.setattr(module.np, "ones", np.zeros)
        assert planned() != before
    with monkeypatch.context() as changed:
        changed.setattr(module, "Split", lambda lists: Split(lists[::-1]))
        assert planned() != before
    assert planned() == before


def test_an_id_holds_what_differs_from_the_defaults_and_no_code_of_a_rule_that_is_not_there() -> None:
    """So a setting that is added, with a default, changes no id but of cells that set it; within settings, too."""
    data = declared_checksum(CELL)
    assert data == "declared:digits"
    differing = {
        "method": "plain",
        "alpha": 0.5,
        "adapters": {"name": "lora", "rank": 2},
        "optimizer": {"name": "adam", "eps": 1e-7},
        "clock": {"uplink": 2e6},
        "dp_sgd": {"noise": 2.0},
        "timeline": [{"round": 3, "add_classes": 1}],
        "client_models": {"by": "size", "models": ["mlp", "logistic"]},
    }
    whole = {
        "settings": {**differing, "clients": 20},  # 20 where the partition needs a number
        "data": data,
        "code": {"method plain": code_digest(METHODS, "plain")},
        "packages": {},
        "version": identity.RESULT_VERSION,
    }
    by_hand = hashlib.blake2b(json.dumps(whole, sort_keys=True).encode(), digest_size=8).hexdigest()
    assert cell_id(Settings.model_validate(differing), data) == by_hand


RANDOM: dict[str, list[Any]] = {
    "method": ["ditto", "fedavg"],
    "label": ["", "mine"],
    "server": [None, "fedbuff", {"name": "fedbuff", "buffer": 2}],
    "dataset_options": [{}, {"mean": None}, {"mean": [0.5]}],
    "public": [None, "digits", {"name": "digits", "std": None}, {"name": "digits", "size": 9}],
    "partition": ["dirichlet", "iid"],
    "shifts": [[], ["rotation"], [{"name": "rotation", "groups": 4}], [{"name": "rotation", "groups": 3}]],
    "timeline": [[], [{"round": 3, "shifts": []}], [{"round": 3, "shifts": ["rotation"]}]],
    "attack": [None, "sign_flip", {"name": "sign_flip", "factor": 1}, {"name": "scale"}],
    "clients": [20, 10],
    "seed": [0, 1],
    "partition_seed": [None, 0, 1],
    "model_options": [{}, {"hidden": 200}, {"hidden": 20}],
    "adapters": [
        None,
        "lora",
        {"name": "lora", "rank": 8, "alpha": 16},
        "adapter",
        "ia3",
        {"name": "ia3", "train": []},
    ],
    "rounds": [30, 31],
    "participation": [1, 0.5],
    "selection": ["uniform", "poisson"],
    "channel": [[], ["clip"], [{"name": "clip", "norm": 1}, "gaussian"], ["clip", {"name": "gaussian", "noise": 2}]],
    "optimizer": [
        "sgd",
        {"name": "sgd"},
        "adam",
        {"name": "adam", "eps": 1e-8},
        {"name": "adamw", "betas": [0.9, 0.9]},
    ],
    "dp_sgd": [None, {}, {"norm": 1}, {"norm": 2}],
    "clock": ["uniform", {"uplink": 1e6}, {"uplink": [1e6, 1e6]}, {"uplink": {"median": 1e6}}, "mobile"],
    "stragglers": [{}, {"0": 1}, {"0": [1, 1]}, {"0": [1, 2]}],
    "new_client_epochs": [[0, 1, 5, 10], [0, 1]],
    "tests": [[], ["global"]],
}
"""Values, some of them the default that is spelled out, or another spelling of the one before."""


def written(drawn: dict[str, Any]) -> CheckedSettings:
    """A cell as a user writes it; the example is dropped where its settings do not go together."""
    try:
        alpha = {} if drawn.get("partition") == "iid" else {"alpha": 0.5}
        return CheckedSettings.model_validate_json(json.dumps({"method": "fedavg"} | alpha | drawn))
    except UserError:
        return reject()


@pytest.mark.parametrize("key", RANDOM)
@given(st.fixed_dictionaries({}, optional={key: st.sampled_from(values) for key, values in RANDOM.items()}))
@settings(max_examples=4, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.filter_too_much])
def test_ids_are_equal_if_and_only_if_the_complete_settings_are(key: str, drawn: dict[str, Any]) -> None:
    """Whether a default is left out or written, and whichever way a value is spelled."""
    cells = [written(values) for values in (drawn, *(drawn | {key: value} for value in RANDOM[key]))]
    ids = [cell_id(cell, "data") for cell in cells]
    whole = [
        cell.model_dump(exclude={*PRESENTATION, "partition_seed"})
        | {"partition_seed": cell.seed if cell.partition_seed is None else cell.partition_seed}
        for cell in cells
    ]
    for one, other in itertools.combinations(range(len(cells)), 2):
        assert (ids[one] == ids[other]) == (whole[one] == whole[other])


SYNTHETIC = {"name": "synthetic", "size": 50}
SPELLINGS: dict[str, list[Any]] = {
    "server": ["fedopt", {"name": "fedopt"}, {"name": "fedopt", "kind": "adam", "eta": 0.01, "tau": 1e-3}],
    "shifts": [["rotation"], [{"name": "rotation"}], [{"name": "rotation", "groups": 4}]],
    "channel": [["top_k", "quantise"], [{"name": "top_k"}, {"name": "quantise", "bits": 8}]],
    "attack": ["backdoor", {"name": "backdoor", "share": 0.2, "target": 0, "size": 2, "poisoned": 0.5, "boost": 1.0}],
    "optimizer": ["adam", {"name": "adam"}, {"name": "adam", "betas": [0.9, 0.999], "eps": 1e-8}],
    "adapters": ["lora", {"name": "lora"}, {"name": "lora", "rank": 8, "alpha": 16, "train": ["head"]}],
    "clock": ["mobile", {"preset": "mobile"}, PRESETS["mobile"]],
    "public": [{**SYNTHETIC, "model_variance": 2}, {**SYNTHETIC, "model_variance": 2.0}],
    "dp_sgd": [{}, {"norm": 1}, {"norm": 1.0, "noise": 1, "delta": 1e-5}],
    "partition_options": [{}, {"min_samples": 0, "balanced": False, "shares": None}],
    "model_options": [{}, {"hidden": 200}],
    "stragglers": [{"1": 2}, {1: 2}, {"1": [2]}, {1: [2, 2]}],
    "wait_free": ["off", False],
    "lr": [1, 1.0],
    "alpha": [1, 1.0],
    "frozen": [[], ()],
    "timeline": [
        [{"round": 1, "shifts": ["rotation"]}],
        [{"round": 1, "shifts": [{"name": "rotation", "groups": 4}], "add_classes": None}],
    ],
}
"""Of each setting, values that mean the same."""
COMMON: dict[str, Any] = {"method": "fedprox", "dataset": "digits", "alpha": 1, "seed": 0, "clients": 4}


def ids(written: dict[str, Any]) -> dict[str, str]:
    """The ids of the one cell that settings say, by the way in which they are said."""
    names = {key: written[key] for key in ("method", "dataset")}
    others = {key: written[key] for key in written if key not in names}
    of_entry = {key: others[key] for key in others if key == "server"}
    inner = {key: others[key] for key in others if key != "server"}
    axes = {key: written[key] for key in (*names, "alpha", "seed")}
    ways: dict[str, list[Settings]] = {
        "axes": load_grid(written).cells,
        "case": load_grid({**names, "cases": [{"name": "a case", **others}]}).cells,
        "vary": load_grid({**axes, "vary": {key: [written[key]] for key in written if key not in axes}}).cells,
        "method": load_grid(
            {"methods": [{"name": written["method"], **of_entry, "set": inner}], "dataset": written["dataset"]}
        ).cells,
        "list": load_grid({"cells": [written]}).cells,
        "list below common settings": load_grid({**written, "cells": [{"rounds": 30}]}).cells,
        "settings": grid_of([Settings(**written)], "g").cells,
        "checked settings": [CheckedSettings(**written)],
    }
    return {way: cell_id(cell, declared_checksum(cell)) for way, (cell,) in ways.items()}


@pytest.mark.parametrize("key", SPELLINGS)
def test_every_way_and_spelling_gives_one_id(key: str) -> None:
    """By axes, cases, a list or in Python, short or in full; combinations of spellings are above."""
    found = {str(value): ids({**COMMON, key: value}) for value in SPELLINGS[key]}
    assert len({one for of_value in found.values() for one in of_value.values()}) == 1, found


def test_a_cell_in_two_spellings_is_listed_twice() -> None:
    entries = [{**COMMON, "server": "fedopt"}, {**COMMON, "server": {"name": "fedopt"}}]
    with pytest.raises(Exception, match="the same cell stands above"):
        load_grid({"cells": entries})


def test_an_option_that_is_added_changes_no_id_but_of_cells_that_set_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what comes with the harness; options of the user's own parts all count, as nobody pins their defaults."""

    def rotation(x: Any, groups: int = 4, later: float = 0.5) -> None: ...

    plain, later, set_now, own = (
        CELL.model_copy(update={"shifts": (ShiftPart.model_validate({"name": "rotation", **options}),)})
        for options in ({"groups": 4}, {"groups": 4, "later": 0.5}, {"groups": 4, "later": 0.6}, {})
    )
    before = cell_id(plain, "data")
    rotation.__module__ = SHIFTS.get("rotation").__module__
    monkeypatch.setitem(SHIFTS._items, "rotation", rotation)
    assert (
        cell_id(plain, "data") == cell_id(later, "data") == cell_id(own, "data") == before != cell_id(set_now, "data")
    )
    monkeypatch.setitem(SHIFTS._items, "rotation", own_rotation)
    assert len({cell_id(cell, "data") for cell in (plain, later, set_now, own)}) == 4


def own_rotation(x: Any, groups: int = 4, later: float = 0.5) -> None:
    """Stands for a shift of the user's own."""


@pytest.mark.long
def test_methods_share_a_code_only_if_they_share_a_file() -> None:
    found = {(METHODS.get(name).__module__, code_digest(METHODS, name)) for name in METHODS.names()}
    modules, codes = zip(*found, strict=True)
    assert len(set(modules)) == len(set(codes)) == len(found)


def test_a_method_without_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS._items, "typed", len)
    with pytest.raises(UserError, match="'typed' has no source file"):
        code_digest(METHODS, "typed")


FILES: dict[str, Callable[[str], dict[str, Any]]] = {
    "data set": lambda path: {"dataset": "npz", "dataset_options": {"path": path}},
    "partition": lambda path: {"partition": "file", "partition_options": {"path": path}},
    "weights": lambda path: {"pretrained": path},
}


@pytest.mark.parametrize("kind", FILES)
def test_a_users_files_count_by_content_not_by_place(kind: str, tmp_path: Path) -> None:
    def identity_of(name: str) -> str:
        cell = CELL.model_copy(update=FILES[kind](str(tmp_path / name)))
        return cell_id(cell, declared_checksum(cell))

    absent = identity_of("a")
    for name, text in {"a": "one", "b": "one", "c": "two"}.items():
        (tmp_path / name).write_text(text)
    assert identity_of("a") == identity_of("b")
    assert len({absent, identity_of("a"), identity_of("c")}) == 3


def test_a_file_whose_time_was_set_back_counts_by_content(tmp_path: Path) -> None:
    """As tools that unpack and copy do; the time of its status they cannot set."""
    file = tmp_path / "a.npz"
    file.write_bytes(b"one")
    before, first = file.stat(), content(file)
    file.write_bytes(b"two")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    while file.stat().st_ctime_ns == before.st_ctime_ns:  # the clock of files has steps of milliseconds
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file.stat().st_mtime_ns == before.st_mtime_ns
    assert content(file) != first


def test_folders_count_by_names_and_contents_also_behind_links(tmp_path: Path) -> None:
    """A folder is read as `image_folder` reads it; a link back to a folder above ends there."""
    data, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    for folder in (data / "dog", data / "cat", elsewhere):
        folder.mkdir(parents=True)
    (data / "cat" / "1.png").write_bytes(b"1")
    (elsewhere / "1.png").write_bytes(b"1")
    found = [content(data)]
    for change in (
        lambda: (data / "cat" / "1.png").rename(data / "cat" / "2.png"),
        lambda: (data / "cat" / "2.png").write_bytes(b"22"),
        lambda: (data / "cat" / "2.png").rename(data / "dog" / "2.png"),  # another class
        lambda: (data / "bird").symlink_to(elsewhere),
        lambda: (elsewhere / "1.png").write_bytes(b"22"),
    ):
        change()
        found.append(content(data))
    assert len(set(found)) == 6
    (elsewhere / "back").symlink_to(data)
    assert content(data) == found[-1]


def test_a_folder_of_plain_files_keeps_its_checksum(tmp_path: Path) -> None:
    """The checksum was worked out once, before links were followed."""
    for place in ("train/cat/1.png", "train/cat-2/1.png", "train/cat/a/b.txt", ".hidden", "test/cat/10.png"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(place)
    assert content(tmp_path) == "c70e5854c87d2b6e"
