"""`bench verify --blind`: methods train without labels of tests, and what scores them loads no plug-in."""

import functools
import importlib
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from bench.conformance.toy_problem import problem, toy_federation
from bench.errors import UserError
from bench.federation.cell_data import CellData, load_all
from bench.federation.scores import Evaluation, Outputs, Scorers
from bench.plugin import METHODS, Registry
from bench.results.results import CellView, load_run
from bench.runs.blind import read_data, read_outputs, without_labels, write_data, write_outputs
from bench.runs.verify.judge import Judge
from bench.runs.workers import _decode
from bench.settings import Settings
from bench.store import store
from tests.runs.conftest import Bench
from tests.runs.sessions import METHOD
from tests.warm import Start

DIGITS: dict[str, Any] = {
    "partition": "dirichlet", "clients": 5, "model": "logistic", "lr": 0.1, "alphas": [0.5], "seeds": [0], "rounds": 2,
    "new_clients": 1, "metrics": ["auroc"],
}  # fmt: skip
HONEST = ["fedavg", "fedala", "knnper", "fedem", "fedproto", "fedmd", "mine"]
PUBLIC = {"name": "digits", "size": 30}

SCORER_AND_JUDGE = """
import torch
from bench.federation import scores
from bench.runs.verify import verify
from bench.runs.verify.recomputed import CellVerdict

def perfect(labels, logits, positions):
    return torch.ones(len(logits)), torch.zeros(len(logits))

scores.accuracy_and_loss = perfect
verify.compare = lambda cell, folder: CellVerdict(cell, "same", "the same bytes")
"""

MEMORY = '''
import gc
import numpy as np
import torch
from bench.data import Dataset
from bench.engine.engine import Engine

answer = Engine.outputs

def outputs(self, samples, tasks, output="logits", owners=None):
    """What the labels in this process say, wherever models are scored."""
    if owners is None:
        return answer(self, samples, tasks, output, owners)
    known = [one for one in gc.get_objects() if isinstance(one, Dataset)]
    y = max(known, key=lambda one: np.count_nonzero(one.y)).y
    return [torch.nn.functional.one_hot(torch.from_numpy(y[at]), 10) * 9.0 for _, at in tasks]

Engine.outputs = outputs
'''


def data(**changes: Any) -> CellData:
    settings = {"method": "fedavg", "dataset": "digits", "alpha": 0.5, "clients": 5, "model": "logistic", "rounds": 1}
    return load_all(Settings(**{**settings, **changes}))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"protocol": "paper"},
        {"partition": "shards", "partition_options": {"k": 2}, "alpha": None},
        {"partition": "classes", "partition_options": {"k": 3, "test_share": 0.3}, "alpha": None},
        {"shifts": [{"name": "concept_shift", "clusters": 2}]},
        {"public": PUBLIC},
    ],
    ids=["dirichlet", "paper", "shards", "classes", "shift", "public"],
)
def test_what_is_handed_out_has_no_label_of_a_test(tmp_path: Path, changes: dict[str, Any]) -> None:
    whole, partition, public = data(**changes)
    write_data(tmp_path / "cell", tmp_path, (whole, partition, public))
    handed, lists, handed_public = read_data(tmp_path / "cell")
    used = np.concatenate([*partition.train, *partition.validation])
    others = np.setdiff1d(np.arange(len(whole.y)), used)
    assert len(others) > 50
    assert set(np.concatenate([*partition.test, partition.global_test])) <= set(others)
    assert set(handed.y[others]) == {0}
    assert np.array_equal(handed.y[used], whole.y[used])
    assert np.array_equal(handed.x, whole.x)
    assert handed.x.dtype == whole.x.dtype
    assert (handed.rows, handed.groups, handed.checksum) == (None, None, "")
    assert (lists.hash, lists.summary, lists.new) == (partition.hash, partition.summary, partition.new)
    assert (handed_public is None) == (public is None)
    if public is not None and handed_public is not None:
        assert np.array_equal(handed_public.y, public.y)
        assert np.array_equal(handed_public.x, public.x)


def test_cells_with_the_same_inputs_share_their_file(tmp_path: Path) -> None:
    cells: dict[str, dict[str, Any]] = {"a": {"seed": 0}, "b": {"seed": 1}, "c": {"shifts": [{"name": "rotation"}]}}
    for name, changes in cells.items():
        write_data(tmp_path / name, tmp_path, data(**changes))
    assert len(list(tmp_path.glob("*.npy"))) == 2


def test_outputs_come_back_as_they_were(tmp_path: Path) -> None:
    left = [
        Outputs(("gm", "pm"), {"lm": [0, 3]}, torch.tensor([[0.1, float("nan")]])),
        Outputs((), {"new0": [7]}, torch.tensor([[1.0, -0.0]], dtype=torch.float64), new=True),
    ]
    (tmp_path / "blind").mkdir()
    write_outputs(tmp_path, 2, left)
    for one, other in zip(left, read_outputs(tmp_path, 2), strict=True):
        assert (one.names, one.own, one.new) == (other.names, other.own, other.new)
        assert one.logits.dtype == other.logits.dtype
        assert one.logits.numpy().tobytes() == other.logits.numpy().tobytes()
    assert read_outputs(tmp_path, 3) == []


def test_outputs_for_another_number_of_samples_are_refused() -> None:
    true, partition = problem()
    scorers = Scorers(torch.from_numpy(true.y), partition, [0, 1, 2, 4], [5])
    for outputs in (Outputs(("gm",), {}, torch.zeros(1, 3)), Outputs((), {"pm": [0]}, torch.zeros(9, 3))):
        with pytest.raises(ValueError, match="outputs for"):
            scorers.score(Evaluation(outputs=[outputs]))


class Evil:
    """Runs code where it is unpickled."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return pytest.fail, ("unpickled",)


def test_nothing_that_a_worker_sends_or_leaves_is_unpickled(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="utf"):
        _decode(pickle.dumps(Evil()))
    (tmp_path / "blind").mkdir()
    np.savez(tmp_path / "blind" / "outputs-1.npz", described=np.array([Evil()], dtype=object))
    with pytest.raises(ValueError, match="allow_pickle=False"):
        read_outputs(tmp_path, 1)


NORM: dict[str, Any] = {"model": "test_norm", "model_options": {}}


@pytest.mark.long
@pytest.mark.parametrize(
    ("method", "changes"),
    [
        *((name, {}) for name in METHODS.names()),
        ("fedavg", {**NORM, "batchnorm": "aggregate"}),
        ("fedavg", {**NORM, "batchnorm": "local"}),
        ("ditto", {"attack": {"name": "label_flip", "share": 0.5}, "metrics": ("macro_f1",)}),
    ],
)
def test_no_method_needs_a_label_of_a_test(method: str, changes: dict[str, Any], tmp_path: Path) -> None:
    """Nor do statistics of batches or means over benign clients: scores by what is left in the folder and the true
    labels are those of the cell."""
    options = changes or ({} if METHODS.get(method).everyone else {"new_clients": 1})
    importlib.import_module("tests.engine.problems")  # registers the model with statistics
    true, partition = problem()
    assert true.y[np.concatenate([*partition.test])].any()
    ordinary = toy_federation(method, **options)
    blind = toy_federation(method, problem=(without_labels(true, partition), partition), **options)
    for federation in (ordinary, blind):
        for _ in range(federation.settings.rounds):
            federation.advance()
    (tmp_path / "blind").mkdir()
    write_outputs(tmp_path, 1, blind.outputs().outputs)
    evaluation, expected = Evaluation(outputs=read_outputs(tmp_path, 1)), ordinary.evaluate()
    labels, metrics = torch.from_numpy(true.y), blind.settings.further_metrics
    Scorers(labels, partition, blind.clients.ids, blind.new, metrics, malicious=blind.malicious).score(evaluation)
    assert evaluation.metrics == expected.metrics
    assert evaluation.scores == expected.scores
    assert evaluation.clients == expected.clients
    assert evaluation.hits == expected.hits
    assert evaluation.metrics


def make_run(start_in: Start, folder: Path, plugin: str, **changes: Any) -> Path:
    """A run of small cells in a folder that has the plug-in `plugin.py`."""
    folder.mkdir(exist_ok=True)
    (folder / "plugin.py").write_text(plugin, encoding="utf-8")
    grid = {**DIGITS, "datasets": ["digits"], "plugins": ["plugin.py"], **changes}
    (folder / "grid.yaml").write_text(yaml.safe_dump(grid), encoding="utf-8")
    with start_in(["run", "--grid", "grid.yaml", "--out", "run", "--quiet"], folder) as process:
        assert process.wait(300) == 0
    return folder


@pytest.fixture
def judged(bench: Bench) -> Bench:
    """Run `bench verify --blind`."""
    return functools.partial(bench, "verify", "--blind")


@pytest.mark.long
def test_honest_methods_have_the_same_bytes(start_in: Start, tmp_path: Path, bench: Bench, judged: Bench) -> None:
    """One of each kind."""
    make_run(start_in, tmp_path, METHOD, methods=HONEST, public=PUBLIC)
    bench("pack", "run")
    out = judged("run.tar.xz", "--plugin", "plugin.py", "--cells", "99").stdout
    verdicts = [line for line in out.splitlines() if line.endswith(": the same bytes")]
    assert [line.split()[2] for line in verdicts] == HONEST
    assert all(line.startswith("ok ") for line in verdicts)
    assert "ids not checked, as they rest on code of plug-ins: 1;" in out


@pytest.mark.long
def test_a_method_of_another_package(start_in: Start, tmp_path: Path, judged: Bench) -> None:
    """The workers load what is installed, and the judge does not."""
    make_run(start_in, tmp_path, "", methods=["odd_slow"], rounds=1, new_clients=0)
    out = judged("run").stdout
    assert ": the same bytes" in out
    assert "ids not checked, as they rest on code of plug-ins: 1;" in out


@pytest.mark.long
@pytest.mark.parametrize("plugin", [SCORER_AND_JUDGE, MEMORY], ids=["scorer and judge", "memory"])
def test_a_plugin_that_helps_itself_is_found(
    start_in: Start, tmp_path: Path, bench: Bench, judged: Bench, plugin: str
) -> None:
    """Without `--blind` its cells are the same bytes: the same code helps itself again."""
    make_run(start_in, tmp_path, plugin + METHOD, methods=["mine"])
    [cell] = load_run(tmp_path / "run").cells
    tests = cell.table("metrics").query("split == 'test' and quantity == 'accuracy' and metric == 'gm'")
    assert tests["value"].min() > 0.999
    assert bench("verify", "run", "--plugin", "plugin.py").stdout.startswith("ok ")
    out = judged("run", "--plugin", "plugin.py", code=1).stdout
    assert out.startswith(f"WRONG {cell.id}  mine digits alpha=0.5 seed=0: other numbers on the same path: metrics.csv")


@pytest.fixture
def judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Judge:
    monkeypatch.setattr(Registry, "entry_points", True)  # the judge turns it off in its process
    return Judge(tmp_path, tmp_path)


def digits_cell(**changes: Any) -> CellView:
    base = {"method": "strange", "dataset": "digits", "alpha": 0.5, "clients": 5, "model": "logistic", "rounds": 1}
    return CellView("0" * 16, "", Settings(**{**base, **changes}), Path(), store.Status())


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"dataset": "mine"}, "data set 'mine'"),
        ({"partition": "mine"}, "partition 'mine'"),
        ({"model": "mine"}, "model 'mine'"),
        ({"shifts": [{"name": "mine"}]}, "shift 'mine'"),
        ({"public": {"name": "mine"}}, "data set 'mine'"),
    ],
)
def test_data_and_models_of_plugins_are_refused(judge: Judge, change: dict[str, Any], what: str) -> None:
    with pytest.raises(UserError, match=f"has a {what} of a plug-in. The process that scores loads no plug-in"):
        judge.plan([digits_cell(**change)])


def test_an_id_that_is_not_checked_is_one_cell_s(judge: Judge) -> None:
    with pytest.raises(UserError, match="of a cell with other settings"):
        judge.plan([digits_cell(seed=seed) for seed in (0, 1)])


def test_a_plugin_that_is_not_there(bench_here: Bench) -> None:
    ended = bench_here("verify", "run", "--blind", "--plugin", "missing.py", code=2)
    assert "there is no file missing.py" in ended.stderr
