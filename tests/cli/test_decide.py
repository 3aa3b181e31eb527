"""`bench decide`: from a table of several sites to a decision."""

import io
import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import bench
from bench.errors import UserError
from sweeps.budget import MOST_SEEDS
from tests.conftest import ROOT
from tests.runs.conftest import Bench
from tests.warm import Python

PLAN = {"methods": ["local", "fedavg", "finetune", "ditto", "ifca"], "rounds": 3, "trials": 1, "seeds": 3}


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Three sites that agree, with two rows of each patient; what is told rests on two measurements."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"site": np.repeat(["north", "south", "a, b"], 48), "x": rng.normal(size=144)})
    frame["patient"] = np.arange(144) // 2
    frame["z"] = rng.normal(size=144) + frame["x"]
    frame["outcome"] = np.where(frame["x"] + 0.3 * rng.normal(size=144) > 0, "ill", "well")
    file = tmp_path / "my sites.csv"
    frame.to_csv(file, index=False)
    return file


def said(result: "subprocess.CompletedProcess[str]") -> list[str]:
    return result.stdout.splitlines()


@pytest.mark.long
def test_a_decision_from_a_table(bench_here: Bench, table: Path, tmp_path: Path) -> None:
    """With too little time it says how much would do; then it decides, has no work left, and is a run like others."""
    columns = ["--label", "outcome", "--site", "site", "--subject", "patient"]
    command = ["decide", table.name, *columns, "--out", "r", "--jobs", 2]
    first, reason, *_ = said(bench_here(*command, "--minutes", 0.001, code=1))
    assert first == "Undecided"
    assert "0.001 minutes are too few; about " in reason
    file = tmp_path / "r" / "plan.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "plan": PLAN}))  # as a slow machine would plan

    result = bench_here(*command, "--minutes", 0.2)
    assert "too small to test" in result.stderr
    decision = json.loads((tmp_path / "r" / "decision.json").read_text())
    assert said(result) == [
        decision["headline"], *(f"- {text}" for text in decision["sentences"]), "r/decision/index.html"
    ]  # fmt: skip
    assert [site["name"] for site in decision["verdict"]["sites"]] == ["a, b", "north", "south"]
    assert list(decision["methods"]) == PLAN["methods"]
    assert decision["rows"] == sum(site["test"] for site in decision["data"]["sites"]) > 30
    assert decision["methods"]["local"]["megabytes"] == 0 < decision["methods"]["fedavg"]["megabytes"]
    page = (tmp_path / "r" / "decision" / "index.html").read_text()
    assert all(text.split("`")[0][:60] in page for text in decision["sentences"])
    assert "What is not claimed" in page
    assert "Every subject counts as independent of the others, its rows do not" in page

    models = tmp_path / "r" / "models"
    assert sorted(file.name for file in models.glob("*.pt")) == ["a-b.pt", "generic.pt", "north.pt", "south.pt"]
    assert str(Path("r", "models")) in page
    verdict = decision["verdict"]
    assert f"of `{verdict['method'] or verdict['judged']}` with seed" in decision["run"][-1]

    run = bench.load_run(tmp_path / "r")
    reported = [cell for cell in run.cells if cell.settings.protocol == "honest"]
    assert len(reported) == len(decision["seeds"]) * 5
    alone = [cell.hits("pm")["correct"].mean() for cell in reported if cell.label == "local"]
    assert len(alone) == len(decision["seeds"])
    assert [site["test"] % 2 for site in decision["data"]["sites"]] == [0, 0, 0]  # both rows of a patient

    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "r").glob("*/metrics.csv")}
    plan = json.loads(file.read_text())
    assert plan["minutes"] == 0.2
    assert plan["plan"]["seeds"] < MOST_SEEDS
    file.write_text(json.dumps({**plan, "minutes": 5}))  # as if there had been time for no more seeds
    again = bench_here(*command, "--minutes", 5)
    assert said(again) == said(result)
    assert stamps == {path: path.stat().st_mtime_ns for path in (tmp_path / "r").glob("*/metrics.csv")}
    seeds = plan["plan"]["seeds"] + 1
    file.write_text(json.dumps({**plan, "minutes": 5, "plan": {**plan["plan"], "seeds": seeds}}))
    bench_here(*command, "--minutes", 5)  # as if a command had been killed after it had found time for one more seed
    assert len(json.loads((tmp_path / "r" / "decision.json").read_text())["seeds"]) == seeds
    bench_here("verify", "r", "--cells", 1, "--jobs", 1)
    bench_here("report", "r")
    assert (tmp_path / "r" / "report" / "index.html").exists()

    frame = pd.read_csv(table)
    from_memory = bench.decide(frame, tmp_path / "m", label="outcome", site="site", minutes=0.001, quiet=True)
    assert "minutes are too few" in from_memory.sentences[0]
    assert pd.read_csv(tmp_path / "m" / "data.csv").equals(frame)
    with pytest.raises(UserError, match="is another table"):
        bench.decide(frame.iloc[1:], tmp_path / "m", label="outcome", site="site", quiet=True)

    table.write_text(table.read_text().replace("ill", "sick"))
    assert "other data" in bench_here(*command, code=2).stderr


def test_what_is_wrong_with_a_table_is_said_before_training(bench_here: Bench, tmp_path: Path) -> None:
    """All of it, as `bench data` says it."""
    rows = [f"s{k % 2},{k},{'ill' if k % 3 else 'Ill'},{k % 5}" for k in range(40)]
    (tmp_path / "bad.csv").write_text("\n".join(["site,number,outcome,x", *rows]))
    options = ["bad.csv", "--label", "outcome", "--site", "site"]
    problems = bench_here("data", *options, code=2).stderr.splitlines()[1:]
    assert len(problems) > 1
    assert bench_here("decide", *options, code=2).stderr.splitlines()[1:] == problems
    assert [path.name for path in tmp_path.iterdir()] == ["bad.csv"]


@pytest.mark.long
def test_a_table_in_memory_that_is_refused_leaves_nothing(tmp_path: Path) -> None:
    frame = pd.DataFrame({"site": ["a", "b"] * 20, "when": ["2020-01-02"] * 40, "ill": ["no", "yes"] * 20})
    with pytest.raises(UserError, match="date"):
        bench.decide(frame, tmp_path / "runs", label="ill", site="site", quiet=True)
    with pytest.raises(UserError, match="--site should name"):
        bench.decide(frame.drop(columns="when").assign(x=[1.5, 2.5] * 20), tmp_path / "runs", label="ill", quiet=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_a_method_that_diverges_with_the_defaults_ends_nothing(bench_here: Bench, tmp_path: Path) -> None:
    """Its time is that of the rounds that it had; tuning may find settings with which it works."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(160, 3)).astype(np.float32)
    sites = np.repeat(["a", "b"], 80)
    np.savez(tmp_path / "own.npz", train_images=x, train_labels=x[:, 0] > 0, groups=sites)
    (tmp_path / "own.yaml").write_text(
        "methods: [local]\ndatasets: [{name: npz, path: own.npz}]\npartition: natural\n"
        "partition_options: {shares: [0.6, 0.15, 0.25]}\nclients: 2\nmodel: mlp\nlr: 1.0e+30\nrounds: 8\n"
        "protocol: honest\n"
    )
    said_ = said(bench_here("decide", "own.yaml", "--minutes", 0.001, "--out", "r", "--jobs", 1, code=1))
    assert "0.001 minutes are too few; about " in said_[1]


def test_what_is_wrong_is_refused_before_torch_is_there(table: Path) -> None:
    """Of a file, a column and an option: torch's import takes seconds."""
    program = """
import contextlib, sys
from bench.cli import main
for wrong in (["none.csv"], ["my sites.csv", "--label", "outcom"], ["my sites.csv", "--score", "f1"]):
    sys.argv = ["bench", "decide", *wrong, "--site", "site"]
    with contextlib.suppress(SystemExit):
        main()
    print("torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=table.parent, capture_output=True, text=True)
    assert done.stdout.split() == ["False"] * 3, done.stderr
    assert done.stderr.count("bench: ") == 3


def test_sites_that_share_tests_are_refused(tmp_path: Path) -> None:
    """And a division that differs from seed to seed is made the same for all of them."""
    from bench.api.decide import _with_same_tests
    from bench.settings import Settings

    cell = Settings(method="local", dataset="digits", partition="dirichlet", alpha=0.5, clients=4)
    shared = cell.model_copy(update={"partition_options": {"shares": [0.6, 0.15, 0.25]}})
    assert _with_same_tests(shared, tmp_path).partition_seed == 0
    with pytest.raises(UserError, match="share samples for tests"):
        _with_same_tests(cell, tmp_path)


@pytest.mark.long
def test_the_page_s_path_from_a_table_to_a_prediction(bench_here: Bench, python: Python, tmp_path: Path) -> None:
    """The commands of docs/decide.md, with minutes as on a slow machine and a plan that fits in them."""
    block = (ROOT / "docs" / "decide.md").read_text(encoding="utf-8").split("```")[1]
    make, look, decide, read, predict = (shlex.split(line, comments=True) for line in block.strip().splitlines())
    shutil.copy(ROOT / "docs" / "examples" / "hospitals" / make[1], tmp_path)
    python(*make[1:], folder=tmp_path)
    bench_here(*look[1:])
    assert (tmp_path / "data.html").is_file()
    bench_here(*decide[1:-1], "0.001", "--jobs", 2, code=1)
    file = tmp_path / Path(read[1]).parent / "plan.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "plan": PLAN}))
    bench_here(*decide[1:-1], "0.2", "--jobs", 2)
    assert json.loads((tmp_path / read[1]).read_text())["headline"]
    rows = pd.read_csv(tmp_path / "hospitals.csv", sep=";", dtype=str).drop(columns=["outcome", "hospital"]).head(5)
    rows.to_csv(tmp_path / predict[-1], sep=";", index=False)
    done = python(*predict[1:], folder=tmp_path)
    table = pd.read_csv(io.StringIO(done.stdout))
    assert len(table) == 5
    assert set(table["predicted"]) <= {"ill", "well"}
