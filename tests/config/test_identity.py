"""What a cell's identity depends on, and what it does not."""

import hashlib
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from pydantic import BaseModel, create_model

from bench.config import identity
from bench.config.checked import CheckedSettings
from bench.config.digests import code_digest
from bench.config.identity import cell_id, declared_checksum
from bench.data import Split
from bench.errors import UserError
from bench.federation import cell_data
from bench.plugin import DATASETS, METHODS, MODELS, PARTITIONS, SERVER_RULES, SHIFTS
from bench.profiles import Profile
from bench.runs.plan import plan
from bench.settings import (
    AdamSettings,
    DataChange,
    LoraSettings,
    ModelsBySize,
    PrivateTraining,
    ServerPart,
    Settings,
    ShiftPart,
)

CELL = Settings(method="plain", alpha=0.5)

CHANGED: dict[str, Any] = {
    "method": "toy",
    "hp": {"tau": 0.2},
    "server": {"name": "buffered", "buffer": 10},
    "dataset": "npz",
    "dataset_options": {"mean": [0.5]},
    "public": {"name": "digits", "size": 10},
    "partition": "iid",
    "partition_options": {"x": 1},
    "shifts": [{"name": "rotation", "groups": 4}],
    "channel": [{"name": "top_k", "share": 0.1}],
    "timeline": [{"round": 3, "add_classes": 1}],
    "attack": {"name": "sign_flip", "share": 0.2, "factor": 1.0},
    "normalise": "per_client",
    "alpha": 0.6,
    "clients": 21,
    "seed": 1,
    "partition_seed": 1,
    "protocol": "paper",
    "validation_share": 0.1,
    "model": "logistic",
    "model_options": {"hidden": 3},
    "client_models": ["mlp", "logistic"],
    "pretrained": "weights.pth",
    "frozen": ["body"],
    "adapters": {"name": "lora", "rank": 2},
    "augment": "crop_flip",
    "batchnorm": "local",
    "dtype": "float64",
    "precision": "tf32",
    "rounds": 31,
    "participation": 0.5,
    "selection": "by_size",
    "new_client_start": "generic",
    "unselected": "broadcast",
    "unselected_steps": 7,
    "new_clients": 3,
    "new_client_epochs": [0, 2],
    "epochs": 2,
    "steps": 3,
    "batch_size": 11,
    "lr": 0.02,
    "lr_decay": 0.9,
    "optimizer": {"name": "adam"},
    "momentum": 0.5,
    "nesterov": True,
    "weight_decay": 0.1,
    "grad_clip": 1.0,
    "dp_sgd": {"noise": 2.0},
    "clock": "mobile",
    "wait_free": False,
    "pm_until_broadcast": True,
    "stragglers": {0: 1},
    "eval_every": 2,
}
PRESENTATION = {"label": "another", "case": "another", "metrics": ["ece"], "select_by": "loss", "tests": ["global"]}


def test_every_setting_is_here() -> None:
    assert CHANGED.keys() | PRESENTATION.keys() == Settings.model_fields.keys()


@pytest.mark.parametrize("key", CHANGED)
def test_every_scientific_setting_counts(key: str) -> None:
    other = Settings.model_validate(CELL.model_dump() | {key: CHANGED[key]})
    assert cell_id(other, "data") != cell_id(CELL, "data")


def test_architectures_in_turn_are_no_draw_by_size() -> None:
    models = ["mlp", "logistic"]
    in_turn, by_size, other = (
        Settings.model_validate(CELL.model_dump() | {"client_models": value})
        for value in (models, {"by": "size", "models": models}, {"by": "size", "models": models[::-1]})
    )
    assert len({cell_id(one, "data") for one in (CELL, in_turn, by_size, other)}) == 4


@pytest.mark.parametrize("key", PRESENTATION)
def test_names_do_not_count(key: str) -> None:
    other = Settings.model_validate(CELL.model_dump() | {key: PRESENTATION[key]})
    assert cell_id(other, "data") == cell_id(CELL, "data")


def test_the_seed_spelled_out_for_the_partition_does_not_count() -> None:
    spelled = Settings.model_validate(CELL.model_dump() | {"partition_seed": CELL.seed})
    assert cell_id(spelled, "data") == cell_id(CELL, "data")


def test_data_and_result_version_count(monkeypatch: pytest.MonkeyPatch) -> None:
    before = cell_id(CELL, "data")
    assert cell_id(CELL, "other data") != before
    monkeypatch.setattr(identity, "RESULT_VERSION", identity.RESULT_VERSION + 1)
    assert cell_id(CELL, "data") != before


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


def test_order_of_keys_does_not_count() -> None:
    one = CELL.model_copy(update={"hp": {"a": 1, "b": {"c": 2, "d": 3}}})
    two = CELL.model_copy(update={"hp": {"b": {"d": 3, "c": 2}, "a": 1}})
    assert cell_id(one, "data") == cell_id(two, "data")


@pytest.mark.long
def test_identity_is_the_same_in_every_process() -> None:
    program = """
import json, sys
from bench.config.identity import cell_id
from bench.settings import Settings
print(cell_id(Settings.model_validate(json.loads(sys.argv[1])), "data"))
"""
    cell = CELL.model_copy(update={"method": "fedavg"})
    done = subprocess.run(
        [sys.executable, "-c", program, json.dumps(cell.model_dump())],
        env={"PYTHONHASHSEED": "1", "PYTHONPATH": str(Path(identity.__file__).parents[2])},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == cell_id(cell, "data")


METHOD = '''
"""A method."""
import math
from . import helper
from someone_elses.inner import depth


class Mine:
    """Says what it is."""

    def broadcast(self, x):
        # the reason
        return helper.double(x) + depth
'''
HELPER = "def double(x):\n    return 2 * x\n"


RULE = '''
from . import helper


class Fold:
    """A server rule."""

    def combine(self, old, messages, name):
        return helper.double(old)
'''


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A method in a package of its own, with modules that it imports and one that it does not."""
    folder = tmp_path / "someone_elses"
    (folder / "inner").mkdir(parents=True)
    for name, text in {
        "__init__.py": "",
        "mine.py": METHOD,
        "helper.py": HELPER,
        "rule.py": RULE,
        "inner/__init__.py": "from someone_elses.inner.deep import depth\n",
        "inner/deep.py": "depth = 1\n",
        "unrelated.py": "x = 1\n",
    }.items():
        (folder / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    import someone_elses.mine  # type: ignore[import-not-found]  # written above
    import someone_elses.rule  # type: ignore[import-not-found]

    monkeypatch.setitem(METHODS._items, "mine", someone_elses.mine.Mine)
    monkeypatch.setitem(SERVER_RULES._items, "fold", someone_elses.rule.Fold)
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == "someone_elses"]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("file", "old", "new", "same"),
    [
        ("mine.py", "# the reason", "# another reason\n", True),
        ("mine.py", "Says what it is.", "Says something else.", True),
        ("mine.py", '"""A method."""', "", True),
        ("mine.py", "+ depth", "+ (\n            depth\n        )", True),
        ("mine.py", "+ depth", "- depth", False),
        ("mine.py", "def broadcast(self, x)", "def broadcast(self, x=None)", False),
        ("helper.py", "2 * x", "3 * x", False),
        ("helper.py", "def double", "# by two\ndef double", True),
        ("inner/deep.py", "1", "2", False),
        ("unrelated.py", "1", "2", True),
    ],
)
def test_code_counts_and_comments_do_not(package: Path, file: str, old: str, new: str, same: bool) -> None:
    before = code_digest(METHODS, "mine")
    text = (package / file).read_text()
    assert old in text
    (package / file).write_text(text.replace(old, new))
    assert (code_digest(METHODS, "mine") == before) == same


@pytest.mark.parametrize(
    ("file", "old", "new", "same"),
    [
        ("rule.py", "double(old)", "double(name)", False),
        ("rule.py", "A server rule.", "What the server does.", True),
        ("helper.py", "2 * x", "3 * x", False),
        ("unrelated.py", "1", "2", True),
    ],
)
def test_code_of_a_server_rule_counts(package: Path, file: str, old: str, new: str, same: bool) -> None:
    """For the cells that have the rule, and for no others."""
    ruled = CELL.model_copy(update={"server": ServerPart(name="fold")})
    before, other = cell_id(ruled, "data"), cell_id(CELL, "data")
    text = (package / file).read_text()
    assert old in text
    (package / file).write_text(text.replace(old, new))
    assert (cell_id(ruled, "data") == before) == same
    assert cell_id(CELL, "data") == other


OWN = """
import numpy as np
from datasets.assemble import assemble
from bench.data import Split
from someone_elses import helper


def data(*, data_root, download, shuffled=False):
    labels = np.arange(40) % 2
    return assemble("own", np.ones((40, 3), np.float32), labels, 30, mean=[0] * 3, std=[1] * 3)


def halves(dataset, *, clients, seed):
    return Split([np.arange(0, 15), np.arange(15, 30)])


def net(shape, classes):
    return None
"""


@pytest.fixture
def own(package: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data set, a partition and a model in a package of the user's own."""
    (package / "own.py").write_text(OWN)
    import someone_elses.own as module  # type: ignore[import-not-found]

    for registry, item in ((DATASETS, module.data), (PARTITIONS, module.halves), (MODELS, module.net)):
        registry.names()
        monkeypatch.setitem(registry._items, "own", item)
    return package / "own.py"


CHANGES = [("np.arange(40) % 2", "np.arange(40)[::-1] % 2"), ("return None", "return 0 * None"), ("15, 30", "16, 30")]


@pytest.mark.parametrize("key", ["dataset", "partition", "model"])
@pytest.mark.parametrize(("old", "new"), CHANGES)
def test_code_of_own_data_sets_partitions_and_models_counts(own: Path, key: str, old: str, new: str) -> None:
    """Whatever changes in their file, or in one that it imports; what comes with the harness has its version."""
    cell = CELL.model_copy(update={key: "own"})
    before, other = cell_id(cell, "data"), cell_id(CELL, "data")
    own.write_text(own.read_text().replace(old, new))
    assert cell_id(cell, "data") != before
    own.write_text(OWN)
    assert cell_id(cell, "data") == before
    (own.parent / "helper.py").write_text("def double(x):\n    return 3 * x\n")
    assert cell_id(cell, "data") != before
    assert cell_id(CELL, "data") == other


def test_samples_and_lists_of_own_data_sets_and_partitions_count(
    own: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
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
    data = declared_checksum(CELL)
    whole = {
        "settings": {"method": "plain", "alpha": 0.5, "clients": 20},  # 20 where the partition needs a number
        "data": data,
        "code": {"method plain": code_digest(METHODS, "plain")},
        "packages": {},
        "version": identity.RESULT_VERSION,
    }
    by_hand = hashlib.blake2b(json.dumps(whole, sort_keys=True).encode(), digest_size=8).hexdigest()
    assert cell_id(CELL, data) == by_hand


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


def with_a_later_setting(value: BaseModel) -> BaseModel:
    """The same settings, of a class that has one more."""
    kind: type[BaseModel] = create_model("Later", __base__=type(value), later=(float, 0.5))
    return kind.model_validate({key: getattr(value, key) for key in type(value).model_fields})


LATER = CELL.model_copy(
    update={
        "adapters": LoraSettings(name="lora", rank=2),
        "optimizer": AdamSettings(name="adam", eps=1e-7),
        "clock": Profile(uplink=2e6),
        "dp_sgd": PrivateTraining(noise=2.0),
        "timeline": (DataChange(round=3, add_classes=1),),
        "client_models": ModelsBySize(by="size", models=("mlp", "logistic")),
    }
)


@pytest.mark.parametrize("key", ["", "adapters", "optimizer", "clock", "dp_sgd", "timeline", "client_models"])
def test_a_setting_that_is_added_changes_no_id_but_of_cells_that_set_it(key: str) -> None:
    before = cell_id(LATER, "data")
    part = getattr(LATER, key) if key else LATER
    (plain,) = part if key == "timeline" else (part,)

    def identity_with(value: Any) -> str:
        changed = {key: (value,) if key == "timeline" else value}
        return cell_id(LATER.model_copy(update=changed) if key else value, "data")

    later = with_a_later_setting(plain)
    assert identity_with(later) == before
    assert identity_with(later.model_copy(update={"later": 0.6})) != before


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


def test_methods_share_a_code_only_if_they_share_a_file() -> None:
    found = {(METHODS.get(name).__module__, code_digest(METHODS, name)) for name in METHODS.names()}
    modules, codes = zip(*found, strict=True)
    assert len(set(modules)) == len(set(codes)) == len(found)


def test_a_method_without_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS._items, "typed", len)
    with pytest.raises(UserError, match="'typed' has no source file"):
        code_digest(METHODS, "typed")


def test_the_users_data_count_by_content_not_by_place(tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_bytes(b"one")
    (tmp_path / "b.npz").write_bytes(b"one")
    (tmp_path / "c.npz").write_bytes(b"two")
    cells = {
        name: CELL.model_copy(update={"dataset": "npz", "dataset_options": {"path": str(tmp_path / f"{name}.npz")}})
        for name in "abcd"
    }
    ids = {name: cell_id(cell, declared_checksum(cell)) for name, cell in cells.items()}
    assert ids["a"] == ids["b"]
    assert len(set(ids.values())) == 3
    (tmp_path / "d.npz").write_bytes(b"two!")  # d was declared before it was there
    assert cell_id(cells["d"], declared_checksum(cells["d"])) != ids["d"]
    assert declared_checksum(CELL) == "declared:digits"


def test_folders_count_by_names_and_contents(tmp_path: Path) -> None:
    def checksum() -> str:
        return declared_checksum(CELL.model_copy(update={"dataset_options": {"path": str(tmp_path)}}))

    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "1.png").write_bytes(b"1")
    first = checksum()
    (tmp_path / "cat" / "1.png").rename(tmp_path / "cat" / "2.png")
    second = checksum()
    (tmp_path / "cat" / "2.png").write_bytes(b"22")
    third = checksum()
    (tmp_path / "dog").mkdir()
    (tmp_path / "cat" / "2.png").rename(tmp_path / "dog" / "2.png")  # another class
    assert len({first, second, third, checksum()}) == 4


def test_a_file_whose_time_was_set_back_counts_by_content(tmp_path: Path) -> None:
    """As tools that unpack and copy do; the time of its status they cannot set."""
    file = tmp_path / "a.npz"

    def checksum() -> str:
        options = {"dataset": "npz", "dataset_options": {"path": str(file)}}
        return declared_checksum(CELL.model_copy(update=options))

    file.write_bytes(b"one")
    before, first = file.stat(), checksum()
    file.write_bytes(b"two")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    while file.stat().st_ctime_ns == before.st_ctime_ns:  # the clock of files has steps of milliseconds
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file.stat().st_mtime_ns == before.st_mtime_ns
    assert checksum() != first


def test_folders_behind_links_count(tmp_path: Path) -> None:
    """As `image_folder` reads them; a link back to a folder above ends there."""

    def checksum() -> str:
        return declared_checksum(CELL.model_copy(update={"dataset_options": {"path": str(tmp_path / "data")}}))

    for folder in ("data/dog", "elsewhere"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "1.png").write_bytes(b"1")
    plain = checksum()
    (tmp_path / "data" / "cat").symlink_to(tmp_path / "elsewhere")
    linked = checksum()
    (tmp_path / "elsewhere" / "1.png").write_bytes(b"22")
    changed = checksum()
    assert len({plain, linked, changed}) == 3
    (tmp_path / "elsewhere" / "back").symlink_to(tmp_path / "data")
    assert checksum() == changed


def test_a_folder_of_plain_files_keeps_its_checksum(tmp_path: Path) -> None:
    """Worked out once, before links were followed."""
    for place in ("train/cat/1.png", "train/cat-2/1.png", "train/cat/a/b.txt", ".hidden", "test/cat/10.png"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(place)
    assert declared_checksum(CELL.model_copy(update={"dataset_options": {"path": str(tmp_path)}})) == "c70e5854c87d2b6e"


def test_a_split_file_counts_by_content(tmp_path: Path) -> None:
    def identity_of(name: str, text: str) -> str:
        (tmp_path / name).write_text(text)
        options = {"path": str(tmp_path / name)}
        return cell_id(CELL.model_copy(update={"partition": "file", "partition_options": options}), "data")

    assert identity_of("a.json", "[1]") == identity_of("b.json", "[1]") != identity_of("c.json", "[2]")
