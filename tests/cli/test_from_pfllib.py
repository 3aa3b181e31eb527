"""`bench from-pfllib`: commands of PFLlib's `main.py` as grids.

Arguments, algorithms, models and what each algorithm reads were taken from PFLlib at d832e76, the newest version of it
that was looked at (29 November 2025). With the variable `PFLLIB`, the path of a checkout, they are compared with it.
"""

import ast
import os
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

import bench
from bench.cli.app import app
from bench.cli.from_pfllib import ALGORITHMS, ARGUMENTS, MODELS, translate
from bench.errors import UserError
from tests.datasets.folders import images, write

READS = {
    "FedAvg": "", "Local": "", "FedMTL": "itk", "PerAvg": "", "pFedMe": "beta lamda K p_learning_rate", "FedProx": "mu",
    "FedFomo": "M", "FedAMP": "alphaK lamda sigma", "APFL": "alpha", "FedPer": "", "Ditto": "mu plocal_epochs",
    "FedRep": "plocal_epochs", "FedPHP": "mu lamda", "FedBN": "", "FedROD": "", "FedProto": "lamda", "FedDyn": "alpha",
    "MOON": "mu tau", "FedBABU": "fine_tuning_epochs", "APPLE": "dr_learning_rate mu L",
    "FedGen": "noise_dim hidden_dim generator_learning_rate server_epochs localize_feature_extractor",
    "SCAFFOLD": "server_learning_rate", "FD": "lamda", "FedALA": "eta rand_percent layer_idx", "FedPAC": "lamda",
    "LG-FedAvg": "", "FedGC": "lamda", "FML": "alpha beta", "FedKD": "mentee_learning_rate T_start T_end",
    "FedPCL": "tau", "FedCP": "lamda", "GPFL": "lamda mu", "FedNTD": "beta tau", "FedGH": "server_learning_rate",
    "FedDBE": "kl_weight momentum", "FedCAC": "beta tau", "PFL-DA": "lamda", "FedLC": "tau", "FedAS": "",
    "FedCross": "first_stage_bound fedcross_alpha collaberative_model_select_strategy",
}  # fmt: skip
"""Of the arguments for single algorithms, those that the files of an algorithm's client and server read."""
OF_README = [
    "-data MNIST -m CNN -algo FedAvg -gr 2000 -did 0",
    "-data MNIST -m CNN -algo FedAvg -gr 2000 -did 0,1,2,3",
]
"""The commands in PFLlib's README and scripts; there are no others."""
OWN = [*ARGUMENTS][[*ARGUMENTS].index("beta") :]
"""The arguments for single algorithms."""

with_checkout = pytest.mark.skipif("PFLLIB" not in os.environ, reason="PFLLIB names no checkout of PFLlib")


def grid_of(text: str) -> tuple[dict[str, Any], list[str]]:
    return translate(shlex.split(text), Path("../dataset"))


def another(name: str) -> str:
    """A value that is not the argument's default, and that every method's option has room for."""
    texts = {"dataset": "HAR", "model": "DNN", "algorithm": "Local", "goal": "a", "T_start": "0.9", "beta": "1.0"}
    default = ARGUMENTS[name][1]
    if isinstance(default, bool | str):
        return texts.get(name, "1")
    return texts.get(name, str(0.5 if isinstance(default, float) else 2 if default != 2 else 3))


def source() -> ast.Module:
    return ast.parse((Path(os.environ["PFLLIB"]) / "system" / "main.py").read_text(encoding="utf-8"))


def compared(of: str) -> set[str]:
    """The texts that `main.py` compares a variable with."""
    comparisons = (
        node for node in ast.walk(source()) if isinstance(node, ast.Compare) and ast.unparse(node.left) == of
    )
    return {str(ast.literal_eval(node.comparators[0])) for node in comparisons if isinstance(node.ops[0], ast.Eq)}


@with_checkout
def test_the_arguments_are_those_of_a_checkout() -> None:
    calls = (node for node in ast.walk(source()) if isinstance(node, ast.Call))
    added = [call for call in calls if ast.unparse(call.func) == "parser.add_argument"]
    names = {}
    for call in added:
        short, long = (ast.literal_eval(word) for word in call.args)
        options = {word.arg: word.value for word in call.keywords if word.arg in ("type", "default")}
        names[long[2:]] = (short[1:], ast.unparse(options["type"]), ast.literal_eval(options["default"]))
    ours = {name: (short, type(default).__name__, default) for name, (short, default) in ARGUMENTS.items()}
    assert names == ours
    assert (compared("args.algorithm"), compared("model_str")) == ({*ALGORITHMS}, {*MODELS})


@with_checkout
def test_the_algorithms_read_what_those_of_a_checkout_read() -> None:
    system = Path(os.environ["PFLLIB"]) / "system"
    main = (system / "main.py").read_text(encoding="utf-8")
    classes = dict(re.findall(r'args\.algorithm == ["\']([\w-]+)["\']:.*?server = (\w+)\(', main, re.DOTALL))
    servers = {name: file for file, name in re.findall(r"from flcore\.servers\.(\w+) import (\w+)", main)}
    reads = {}
    for algorithm, server in classes.items():
        of_server = (system / "flcore" / "servers" / f"{servers[server]}.py").read_text(encoding="utf-8")
        client = re.findall(r"from flcore\.clients\.(client\w+) import", of_server)[0]
        of_client = (system / "flcore" / "clients" / f"{client}.py").read_text(encoding="utf-8")
        code = re.sub(r"#.*", "", of_server + of_client)
        reads[algorithm] = {*re.findall(r"\bargs\.(\w+)", code)} & {*OWN}
    assert reads == {name: {*arguments.split()} for name, arguments in READS.items()}


@with_checkout
def test_the_commands_are_those_of_a_checkout() -> None:
    files = [path for path in Path(os.environ["PFLLIB"]).rglob("*") if path.suffix in (".md", ".sh", ".html", ".yaml")]
    text = "\n".join(path.read_text(encoding="utf-8") for path in files)
    assert {line.strip() for line in re.findall(r"python main\.py ([^#\n]+)", text)} == {*OF_README}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_an_argument_is_in_the_grid_or_has_a_line(name: str) -> None:
    short, _ = ARGUMENTS[name]
    trials = "-t 3"  # so that the first may be left out
    plain, _ = grid_of(trials)
    grid, lines = grid_of(f"{trials} -{short} {another(name)}")
    about = [line for line in lines if line.startswith(f"-{short}: ")]
    assert grid != plain or about
    assert (f"-{short}: FedAvg does not read it there" in lines) == (name in OWN)
    assert any("any text switches it on" in line for line in about) == (name == "learning_rate_decay")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_an_algorithm_reads_is_in_the_grid_or_has_a_line(algorithm: str) -> None:
    """Of each argument that the algorithm does not read, a line says so."""
    reads = READS[algorithm].split()
    given = " ".join(f"-{ARGUMENTS[name][0]} {another(name)}" for name in OWN)
    _, lines = grid_of(f"-algo {algorithm} {given}")
    for name in OWN:
        said = f"-{ARGUMENTS[name][0]}: {algorithm} does not read it there"
        assert (said in lines) == (name not in reads), name
    base, _ = grid_of(f"-algo {algorithm} -lam 0.25")
    for name in reads:
        short = ARGUMENTS[name][0]
        kept = "" if name == "lamda" else "-lam 0.25 "
        grid, lines = grid_of(f"-algo {algorithm} {kept}-{short} {another(name)}")
        assert grid != base or any(line.startswith(f"-{short}: ") for line in lines), name


@pytest.mark.parametrize("model", MODELS)
def test_each_model(model: str) -> None:
    grid, lines = grid_of(f"-m {model} -algo Local -fd 32")
    assert grid["model"] == MODELS[model][0]
    assert any(line.startswith("-m: ") for line in lines) == bool(MODELS[model][2])


def test_a_command_by_hand() -> None:
    grid, lines = grid_of("-data MNIST -algo Ditto -m CNN -gr 200 -lbs 10 -lr 0.02 -nc 20 -jr 0.5 -mu 0.1")
    assert grid == {
        "name": "mnist_ditto_test", "methods": [{"name": "ditto", "lam": 0.1, "personal_epochs": 1}],
        "datasets": [{"name": "pfllib", "path": "../dataset/MNIST", "first": 20}], "partition": "natural",
        "clients": "all", "seeds": [0], "participation": 0.5, "protocol": "paper", "batchnorm": "local",
        "precision": "fp32", "rounds": 200, "epochs": 1, "batch_size": 10, "lr": 0.02, "eval_every": 1, "model": "cnn",
    }  # fmt: skip
    assert len(lines) == 2  # of short batches and means, and where to read on
    assert grid_of("--mu 0.1 --algorithm Ditto --local_epochs 3") == grid_of("-mu 0.1 -algo Ditto -ls 3")


def test_trials_new_clients_and_shares() -> None:
    grid, lines = grid_of("-data AGNews -m fastText -t 4 -pv 1 -nc 10 -jr 0.35 -nnc 2 -ften 3 -vs 100 -ld 1 -cdr 0.2")
    assert (grid["seeds"], grid["participation"]) == ([1, 2, 3], 0.3)
    assert grid["datasets"][0] == {"name": "pfllib", "path": "../dataset/AGNews", "first": 12, "vocabulary": 100}
    assert grid["partition_options"] == {"held_out": [10, 11]}
    assert (grid["new_client_epochs"], grid["new_client_start"], grid["lr_decay"]) == ([3], "generic", 0.99)
    assert grid["clock"] == {"dropout": 0.2}
    assert "-jr: rounded down as there: 3 of 10 clients" in lines
    assert any(line.startswith("-m: PFLlib leaves the log-softmax") for line in lines)
    assert not any(line.startswith("-m: ") for line in grid_of("-m fastText -algo Ditto")[1])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("-algo FedX", "-algo FedX: PFLlib's algorithm 'FedX' is not here"),
        ("-algo fedavg", "Did you mean 'FedAvg'"),
        ("-m VGG", "-m VGG: PFLlib's model 'VGG' is not here"),
        ("-gamma 1", "main.py would refuse this: unrecognized arguments"),
        ("-gr many", r"main.py would refuse this: argument -gr/--global_rounds: invalid int value: 'many'"),
        ("-jr 0.01", "-jr 0.01 selects none of 20 clients"),
        ("-pv 2", "-pv 2 -t 1 leaves no trial to run"),
        ("-algo FedPHP", "-algo FedPHP with these arguments is no cell here: .*lam"),  # the default: no cross-entropy
        ("-algo Ditto -mu -1", "-algo Ditto with these arguments is no cell here: .*lam"),
    ],
)
def test_refusals(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        grid_of(text)


@pytest.mark.parametrize("command", OF_README)
def test_a_dry_run_accepts_the_commands_of_the_readme(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    printed = CliRunner().invoke(app, ["from-pfllib", "--", *shlex.split(command)])
    assert printed.output.splitlines()[0] == f"# python main.py {command}  (PFLlib d832e76)"
    Path("grid.yaml").write_text(printed.output)
    dry = CliRunner().invoke(app, ["run", "--grid", "grid.yaml", "--dry-run"])
    assert dry.exit_code == 0, dry.output
    assert "1 cells of 1 methods on pfllib: 2000 rounds" in dry.output


def test_the_grid_runs_on_a_folder(tmp_path: Path) -> None:
    """Clients, their samples and the selected share are those of the command."""
    labels = [[0, 1, 2, 0], [1, 1, 0], [2, 2, 2, 1, 0], [0, 1]]
    write(tmp_path / "MNIST", [(images(own), images(own[:2])) for own in labels])
    grid, _ = translate(shlex.split("-m MLR -gr 2 -lbs 2 -nc 3 -jr 0.7"), tmp_path)
    run = bench.run(grid, out=tmp_path / "run", tracking=False)
    last = run.clients.query("round == 2 and metric == 'pm' and split == 'test'")
    assert last["samples"].tolist() == [2, 2, 2]
    settings = run.cells[0].settings
    assert [len(own) for own in bench.load_partition(settings, bench.load_dataset(settings)).train] == [4, 3, 5]
    assert np.isclose(settings.participation, 2 / 3)
    assert yaml.safe_load(yaml.safe_dump(grid)) == grid
