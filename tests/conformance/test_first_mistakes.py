"""Likely mistakes in a first method: each gets the message that docs/first-mistakes.md shows, with its line."""

import re
from pathlib import Path

import pytest
import yaml

import bench
from bench.conformance import suite
from bench.errors import UserError, in_words
from bench.plugin import METHODS
from bench.settings import Executor

TRAIN = 'Train({"w": down["model"]}, loss=cross_entropy)'


def written(body: str = "", *, train: str = TRAIN, upload: str = '{"model": trained["w"]}', loss: str = "") -> str:
    """The file of a method: FedAvg with one expression or function in another place."""
    return f"""
import torch
import torch.nn.functional as F
from bench.method import *

{loss}

@METHODS.register("mine")
class Mine(Method):
    mean_of = ("model",)

    def client_round(self, client, down):
        trained = yield {train}
        yield Upload({upload})
        return trained["w"]

{body}
"""


def of_loss(returned: str) -> str:
    """The file of a method whose loss ends with this line."""
    loss = f"def mine(model, values, batch, ctx):\n    {returned}"
    return written(train='Train({"w": down["model"]}, loss=mine)', loss=loss)


PER_SAMPLE = 'F.cross_entropy(model(values["w"], batch.x), batch.y, reduction="none")'
LOSS = f"loss = batch.mean({PER_SAMPLE})\n    "
RETURN = f"return batch.mean({PER_SAMPLE})"
UPLOAD = 'yield Upload({"model": trained["w"]})'
BODY = 'trained["w"].without("head")'
MISTAKES: dict[str, tuple[str, int | None]] = {
    "personal is not written": (written('    trains = "pm"'), None),
    "personal knows no model yet": (
        written(
            "    trains = 'pm'\n    def personal(self, server, client, down):\n        return client.state.get('w')"
        ),
        None,
    ),
    "generic is not written": (
        written("    mean_of = ('body',)", train=TRAIN.replace("model", "body"), upload='{"body": trained["w"]}'),
        None,
    ),
    "generic is a body": (
        written("    def generic(self, server):\n        return server.state['model'].without('head')"),
        None,
    ),
    "a body is uploaded as the model": (written(upload=f'{{"model": {BODY}}}'), None),
    "trains is no tier": (written("    trains = 'personal'"), None),
    "mean_of is text": (written("    mean_of = 'model'"), None),
    "numbers are uploaded": (written(upload='{"model": trained["w"].weights.tolist()}'), None),
    "a model is uploaded without a name": (written(upload='trained["w"]'), 14),
    "an answer is uploaded": (written(upload='{"model": trained}'), 14),
    "another name is uploaded": (written(upload='{"w": trained["w"]}'), None),
    "nothing is uploaded": (written().replace('yield Upload({"model": trained["w"]})', "pass"), None),
    "an upload is not yielded": (written().replace("yield Upload", "Upload"), 14),
    "a round is no program": (written().replace("yield ", ""), 14),
    "a layer that is not there": (
        written(train='Train({"w": down["model"]}, loss=cross_entropy, only={"w": ("classifier",)})'),
        13,
    ),
    "a name that is not received": (written(train=TRAIN.replace("model", "global")), 13),
    "a model without a name is trained": (written(train="Train(down['model'], loss=cross_entropy)"), 13),
    "a part is called otherwise": (written(train=TRAIN.replace('"w"', '"net"')), 13),
    "weights of another size": (
        written(train='Train({"w": down["model"].with_weights(down["model"].weights[:9])}, loss=cross_entropy)'),
        13,
    ),
    "a list is yielded": (written(train=f"[{TRAIN}]"), 13),
    "epochs are text": (written(train=TRAIN[:-1] + ", epochs='2')"), 13),
    "an optimizer of torch": (written(train=TRAIN[:-1] + ", optimizer=torch.optim.SGD)"), None),
    "a loss of torch": (written(train='Train({"w": down["model"]}, loss=F.cross_entropy)'), None),
    "a loss for each sample": (of_loss(f"return {PER_SAMPLE}"), 14),
    "a loss that returns nothing": (of_loss(PER_SAMPLE), 14),
    "a model without its weights": (of_loss("return model(batch.x).sum()"), 7),
    "a model with a tensor": (of_loss('return model(values["w"].weights, batch.x).sum()'), 7),
    "a constant that is not given": (of_loss("return ctx.center.sum()"), 7),
    "a hyperparameter that is not declared": (of_loss("return ctx.hp.mu"), 7),
    "a constructor as of torch": (written("    def __init__(self, model, lr):\n        self.model = model"), None),
    "a mean that nobody keeps": (
        written("    def aggregate(self, server, messages):\n        return mean(messages, 'model')"),
        None,
    ),
    "a state dict of a model value": (
        written("    def aggregate(self, server, messages):\n        messages[0]['model'].state_dict()"),
        18,
    ),
    "a network is kept": (
        written("    def init_client(self, server, client):\n        client.state['net'] = torch.nn.Linear(2, 2)"),
        None,
    ),
    "a hyperparameter without a type": (written(loss="class Hyper(Hyperparameters):\n    mu = hp(0.1)"), 6),
    "a loss calls backward": (of_loss(LOSS + "loss.backward()\n    return loss"), None),
    "a name is uploaded twice": (written().replace(UPLOAD, f"{UPLOAD}\n        {UPLOAD}"), 15),
    "an answer is taken as a pair": (written().replace("trained = yield", "trained, loss = yield"), 13),
    "a class that is not registered": (written().replace('@METHODS.register("mine")', ""), None),
}

SLOW = {
    "a branch on a number": (of_loss(LOSS + "return loss if loss > 1 else 2 * loss"), 8),
    "a number of Python": (of_loss(LOSS + "return loss * loss.item()"), 8),
    "a list of Python": (of_loss(LOSS + "return loss * len(batch.y.tolist())"), 8),
    "a size by numbers": (of_loss(LOSS + "return loss * len(batch.y.unique())"), 8),
    "in place": (of_loss("z = torch.zeros(2)\n    " + LOSS + "z += loss\n    return z.sum()"), 9),
    "an entry in place": (of_loss("z = torch.zeros(2)\n    " + LOSS + "z[0] = loss\n    return z.sum()"), 9),
    "a draw": (of_loss(LOSS + "return loss * torch.rand(())"), 8),
}

WRONG = {
    "a loss without a gradient": (of_loss("with torch.no_grad():\n        " + RETURN), 15),
    "a loss takes the step": (
        of_loss("with torch.no_grad():\n        values['w'].weights.mul_(0.99)\n    " + RETURN),
        16,
    ),
    "a mean over padding": (of_loss("return F.cross_entropy(model(values['w'], batch.x), batch.y)"), None),
}


SAID = yaml.safe_load(Path("docs/examples/first_mistakes.yaml").read_text(encoding="utf-8"))
"""Messages by mistake, in the three tables of the page; `…` stands for any words."""


def test_the_page_has_these_mistakes() -> None:
    tables = {"stops": MISTAKES, "slow": SLOW, "wrong": WRONG}
    assert {name: said.keys() for name, said in SAID.items()} == {name: table.keys() for name, table in tables.items()}
    assert len(MISTAKES | SLOW | WRONG) == len(MISTAKES) + len(SLOW) + len(WRONG)


def check_message(mistake: str, line: int | None, said: str) -> None:
    """Check that a message is that of the page, and names the line."""
    words = ".*".join(map(re.escape, re.split(" ?… ?", {**SAID["stops"], **SAID["slow"], **SAID["wrong"]}[mistake])))
    assert re.search(words, said, re.DOTALL), said
    assert line is None or f"(mine.py, line {line})" in said or f"mine.py:{line}:" in said, said


def checked(file: Path) -> str:
    """The first line and remedy of `bench check-method`."""
    try:
        suite.load(file)
    except UserError as error:
        return str(error)
    return next(f"{f.problem} {f.remedy}" for f in suite.check("mine") if not f.passed)


def computed(file: Path, executor: Executor = "auto") -> list[str]:
    """Compute two rounds, an evaluation and what a checkpoint would hold; returns the cell's warnings."""
    bench.load_file(file)
    grid = {"methods": ["mine"], "alphas": [1.0], "clients": 3, "epochs": 1, "model_options": {"hidden": 32}}
    cell = bench.Federation.of(bench.load_grid({**grid, "seeds": [0], "rounds": 2}).cells[0], executor=executor)
    cell.advance(), cell.advance(), cell.evaluate(), cell.state()
    return cell.warnings


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the method and its file afterwards, which workers of later runs would load."""
    METHODS.names()
    monkeypatch.setattr(METHODS, "_items", dict(METHODS._items))
    monkeypatch.setattr(bench.plugin, "_FILES", dict(bench.plugin._FILES))


@pytest.fixture
def mine(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The file with the test's mistake."""
    text, _ = {**MISTAKES, **SLOW, **WRONG}[request.node.callspec.params["mistake"]]
    (tmp_path / "mine.py").write_text(text)
    return tmp_path / "mine.py"


ONE_BY_ONE = ["a branch on a number", *(pytest.param(name, marks=pytest.mark.long) for name in [*SLOW][1:])]
"""`make test` tries one of the slow losses."""


@pytest.mark.parametrize("mistake", [*MISTAKES, *WRONG, *ONE_BY_ONE])
def test_what_check_method_says(mistake: str, mine: Path) -> None:
    check_message(mistake, {**MISTAKES, **SLOW, **WRONG}[mistake][1], checked(mine))


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_run_stops_before_its_first_checkpoint(mistake: str, mine: Path) -> None:
    with pytest.raises((UserError, TypeError, ValueError, AttributeError, KeyError)) as error:
        computed(mine)
    check_message(mistake, MISTAKES[mistake][1], in_words(error.value, str(mine)))


@pytest.mark.parametrize("mistake", ONE_BY_ONE)
def test_a_run_says_in_one_line_what_makes_clients_run_one_by_one(mistake: str, mine: Path) -> None:
    (said,) = computed(mine)
    check_message(mistake, SLOW[mistake][1], said)
    assert len(said) < 220


@pytest.mark.parametrize("mistake", WRONG)
def test_what_a_run_cannot_know(mistake: str, mine: Path) -> None:
    assert computed(mine) == []


BY_EXECUTOR: list[tuple[str, Executor]] = [
    ("a loss calls backward", "sequential"),
    ("a loss calls backward", "debug"),
    ("a loss without a gradient", "debug"),
    ("a loss takes the step", "debug"),
]


@pytest.mark.parametrize(("mistake", "executor"), BY_EXECUTOR)
def test_what_other_executors_say(mistake: str, executor: Executor, mine: Path) -> None:
    with pytest.raises((UserError, TypeError)) as error:
        computed(mine, executor)
    check_message(mistake, None, str(error.value))
