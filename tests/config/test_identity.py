"""What a cell's identity depends on, and what it does not."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.config import code_digests, identity
from bench.config.code_digests import code_digest
from bench.config.file_digests import content
from bench.config.identity import cell_id, declared_checksum
from bench.config.model_marks import model_marks
from bench.data import Split
from bench.errors import UserError
from bench.federation import cell_data
from bench.plugin import DATASETS, METHODS, MODELS, PARTITIONS, SELECTIONS, SERVER_RULES
from bench.runs.plan import plan
from bench.settings import PublicSet, ServerPart, Settings

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


def test_a_version_of_one_precision_counts_for_its_cells_only(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = {p: CELL.model_copy(update={"precision": p}) for p in ("fp32", "tf32", "bf16")}
    before = {p: cell_id(one, "data") for p, one in cells.items()}
    monkeypatch.setattr(identity, "_PRECISION_VERSIONS", {})
    assert {p for p, one in cells.items() if cell_id(one, "data") != before[p]} == {"bf16"}


@pytest.mark.parametrize(
    ("versions", "change", "method"),
    [
        ("_TIMELINE_VERSIONS", {"timeline": CHANGED["timeline"]}, "fedah"),
        ("_LOCAL_VERSIONS", {"batchnorm": "local"}, "fedadmm"),
        ("_WHOLE_VERSIONS", {"model": "resnet18"}, "pgfed"),
    ],
)
def test_a_version_of_a_methods_results_counts_for_its_cells_only(
    versions: str, change: dict[str, Any], method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`plain` is a method of a user's, whose results may have changed as well."""
    cells = {
        (name, bool(more)): Settings(method=name, alpha=0.5, **more)
        for name in ("fedavg", method, "plain")
        for more in ({}, change)
    }
    with monkeypatch.context() as before:
        before.setattr(identity, versions, {})
        earlier = {name: cell_id(one, "data") for name, one in cells.items()}
    assert {name for name, one in cells.items() if cell_id(one, "data") != earlier[name]} == {
        (method, True),
        ("plain", True),
    }


def test_a_version_of_late_models_counts_where_data_change_and_models_leap_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    late, changing = {"stragglers": {0: 1}}, {"timeline": CHANGED["timeline"]}
    settings: dict[str, dict[str, Any]] = {
        "both": late | changing,
        "another name": late | changing | {"method": "fedavg_async", "hp": {"late": "leap"}},
        "interpolated": late | changing | {"hp": {"late": "drop", "interpolate": True}},
        "as it is": late | changing | {"method": "fedavg_async", "hp": {"late": "as_is", "interpolate": False}},
        "late": late,
        "changing": changing,
    }
    leaps = {"method": "lga", "alpha": 0.5, "hp": {"late": "leap", "interpolate": False}}
    cells = {name: Settings.model_validate(leaps | more) for name, more in settings.items()}
    before = {name: cell_id(one, "data") for name, one in cells.items()}
    monkeypatch.setattr(identity, "_LEAP_VERSION", 1)
    changed = {name for name, one in cells.items() if cell_id(one, "data") != before[name]}
    assert changed == {"both", "another name", "interpolated"}


def test_a_version_of_privacy_counts_where_there_is_noise_only(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = {"name": "gaussian", "noise": 1.0, "on": "sum", "delta": 1e-5}
    clip = {"name": "clip", "norm": 1.0}
    kinds: dict[str, dict[str, Any]] = {
        "sum": {"channel": [clip, noise]}, "each": {"channel": [clip, {**noise, "on": "each"}]},
        "training": {"dp_sgd": {}}, "clipped": {"channel": [clip]}, "plain": {},
    }  # fmt: skip
    cells = {name: Settings.model_validate({"method": "fedavg", **of}) for name, of in kinds.items()}
    before = {name: cell_id(one, "data") for name, one in cells.items()}
    monkeypatch.setattr(identity, "_PRIVACY_VERSION", 1)
    changed = {name for name, one in cells.items() if cell_id(one, "data") != before[name]}
    assert changed == {"sum", "each", "training"}


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
from bench.settings import PublicSet, Settings
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


MARKED: dict[str, list[str]] = {
    "net.register_buffer('mean', 0)": ["statistics"],
    "net.register_buffer('table', 0, persistent=False)": [],
    "nn.InstanceNorm2d(4, track_running_stats=True)": ["statistics"],
    "nn.BatchNorm2d(4, track_running_stats=False)": [],
    "nn.Embedding(9, 4, padding_idx=0)": ["padding"],
    "nn.Embedding(9, 4, 0)": ["padding"],
    "nn.Embedding(9, 4)": [],
}


@pytest.mark.parametrize("call", MARKED)
def test_own_models_whose_numbers_changed_have_new_ids_and_no_others(
    own: Path, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a file that the model's imports makes the call; models of the package have no such marks."""
    (own.parent / "helper.py").write_text(f"def double(net, nn):\n    return {call}\n")
    cell = CELL.model_copy(update={"model": "own"})
    assert model_marks(cell) == MARKED[call]
    assert model_marks(CELL) == []
    now = cell_id(cell, "data"), cell_id(CELL, "data")
    monkeypatch.setattr(identity, "model_marks", lambda settings: [])
    assert (cell_id(cell, "data") == now[0]) == (not MARKED[call])
    assert cell_id(CELL, "data") == now[1]


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


def test_a_cell_without_a_server_rule_has_no_code_of_one() -> None:
    unchosen = {*identity._ABSENT}
    settings = CELL.model_dump(mode="json", exclude={*PRESENTATION, *unchosen})
    settings |= {"partition_seed": CELL.seed}
    data = declared_checksum(CELL)
    whole = {
        "settings": settings,
        "data": data,
        "code": code_digest(METHODS, "plain"),
        "version": identity.RESULT_VERSION,
    }
    by_hand = hashlib.blake2b(json.dumps(whole, sort_keys=True).encode(), digest_size=8).hexdigest()
    assert cell_id(CELL, data) == by_hand


def test_settings_that_came_later_are_left_out_at_their_defaults() -> None:
    """A part that one of them gets, such as another number of an optimizer, must not give all old cells new ids."""
    defaults = Settings(method="plain").model_dump(mode="json")
    assert {name: defaults[name] for name in identity._ABSENT} == identity._ABSENT


def test_methods_share_a_code_only_if_they_share_a_file() -> None:
    found = {(METHODS.get(name).__module__, code_digest(METHODS, name)) for name in METHODS.names()}
    modules, codes = zip(*found, strict=True)
    assert len(set(modules)) == len(set(codes)) == len(found)


def test_code_that_only_moved_keeps_its_cells_and_none_is_remembered_that_has_changed_since() -> None:
    used = {code_digest(METHODS, name) for name in METHODS.names()} | {code_digest(SELECTIONS, "by_size")}
    assert set(code_digests._MOVED.values()) <= used


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


Y = np.arange(4) % 2
FLOATS, BYTES = np.ones((4, 3), np.float32), np.ones((4, 3, 3), np.uint8)
STORED: dict[str, tuple[dict[str, Any], bool]] = {
    "float images": ({"train_images": np.ones((4, 3, 3), np.float64)}, True),
    "half-precision images": ({"train_images": np.ones((4, 3, 3), np.float16)}, True),
    "features": ({"train_images": FLOATS}, True),
    "series": ({"train_series": np.ones((4, 1, 9), np.float32), "test_series": np.ones((4, 1, 9), np.float32)}, True),
    "byte images": ({"train_images": BYTES}, False),
    "tokens": ({"train_tokens": np.ones((4, 9), int)}, False),
}


@pytest.mark.parametrize("case", STORED)
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_cells_on_floating_numbers_of_ones_own_have_new_ids_and_no_others(tmp_path: Path, case: str, save: Any) -> None:
    """Their inputs were not normalised before. A header tells which they are, without the array."""
    arrays, floating = STORED[case]
    save(tmp_path / "own.npz", **arrays, train_labels=Y)
    path = tmp_path / "own.npz"

    def checksum(**options: Any) -> str:
        options = {"path": str(path), "mean": None, "std": None, **options}
        return declared_checksum(CELL.model_copy(update={"dataset": "npz", "dataset_options": options}))

    digest = content(path)
    changed = f"{digest} {identity.NORMALISED}" if floating else digest
    assert checksum() == changed
    assert checksum(mean=[0.0], std=[1.0]) == digest  # as they are: what cells saw before
    assert checksum(mean=[0.0]) == changed
    assert checksum(mean=[0.0], std=[2.0]) == changed
    public = CELL.model_copy(update={"public": PublicSet(name="npz", path=str(path))})
    assert declared_checksum(public) == f"declared:digits {changed}"


@pytest.mark.parametrize("damage", [b"", b"no archive", b"PK\x03\x04 cut"])
def test_a_damaged_file_has_an_id_until_its_loader_refuses_it(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "own.npz"
    path.write_bytes(damage)
    options = {"path": str(path)}
    checksum = declared_checksum(CELL.model_copy(update={"dataset": "npz", "dataset_options": options}))
    assert checksum == content(path)


@pytest.mark.parametrize("name", ["digits", "synthetic", "markov", "motion"])
def test_built_in_data_say_whether_their_floating_inputs_are_normalised(name: str) -> None:
    data = DATASETS.get(name)(data_root=Path(), download=False)
    normalised = data.floating and identity.changes_inputs(data.mean, data.std)
    wanted = f"declared:{name}{f' {identity.NORMALISED}' if normalised else ''}"
    assert declared_checksum(CELL.model_copy(update={"dataset": name})) == wanted
    assert normalised == (name == "motion")
