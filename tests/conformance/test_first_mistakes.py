"""Likely mistakes in a first method: each gets one line that names the place or the remedy."""

import re
from pathlib import Path

import pytest

import bench
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
UPLOAD = 'yield Upload({"model": trained["w"]})'
BODY = 'trained["w"].without("head")'
MISTAKES = {
    "personal is not written": (
        written('    trains = "pm"'),
        r"Mine.personal \(trains = 'pm'\) gave nothing .*: write",
    ),
    "personal knows no model yet": (
        written(
            "    trains = 'pm'\n    def personal(self, server, client, down):\n        return client.state.get('w')"
        ),
        r"Mine.personal .* gave nothing where a model value is due",
    ),
    "generic is not written": (
        written("    mean_of = ('body',)", train=TRAIN.replace("model", "body"), upload='{"body": trained["w"]}'),
        "Mine.generic gave nothing where a model value is due",
    ),
    "generic is a body": (
        written("    def generic(self, server):\n        return server.state['model'].without('head')"),
        r"Mine.generic gave a part of a model \(body.fc1\): `join\(body, head\)`",
    ),
    "a body is uploaded as the model": (
        written(upload=f'{{"model": {BODY}}}'),
        r"a part of a model \(body.fc1\) .*`join\(body, head\)`",
    ),
    "trains is no tier": (written("    trains = 'personal'"), "trains = 'personal' is none of 'gm', 'pm' and 'both'"),
    "mean_of is text": (written("    mean_of = 'model'"), 'mean_of = "model" is text: write'),
    "numbers are uploaded": (
        written(upload='{"model": trained["w"].weights.tolist()}'),
        "'model' is a list in the uploads: a mean is of model values or tensors",
    ),
    "a model is uploaded without a name": (written(upload='trained["w"]'), r"Upload\(Params\) has no names: .*line 14"),
    "an answer is uploaded": (written(upload='{"model": trained}'), r"holds the answer to Train: take .*line 14"),
    "another name is uploaded": (written(upload='{"w": trained["w"]}'), "no client sent 'model', but 'w'"),
    "nothing is uploaded": (
        written().replace('yield Upload({"model": trained["w"]})', "pass"),
        "no client sent 'model': a client's round has to `yield Upload",
    ),
    "an upload is not yielded": (written().replace("yield Upload", "Upload"), r":14: Upload\(...\) is never yielded"),
    "a round is no program": (
        written().replace("yield ", ""),
        "never yielded|a round gave .*, not a program",
    ),
    "a layer that is not there": (
        written(train='Train({"w": down["model"]}, loss=cross_entropy, only={"w": ("classifier",)})'),
        "is named 'classifier' or below it; there are body.fc1.weight",
    ),
    "a name that is not received": (
        written(train=TRAIN.replace("model", "global")),
        r"no down\['global'\].*has: model .*13",
    ),
    "a model without a name is trained": (
        written(train="Train(down['model'], loss=cross_entropy)"),
        r"write Train\(.*13",
    ),
    "a part is called otherwise": (
        written(train=TRAIN.replace('"w"', '"net"')),
        "trains a part 'w', and there is 'net'",
    ),
    "weights of another size": (
        written(train='Train({"w": down["model"].with_weights(down["model"].weights[:9])}, loss=cross_entropy)'),
        r"weights \[9\] where its network has \[2410\] .*13",
    ),
    "a list is yielded": (written(train=f"[{TRAIN}]"), "yield requests one by one"),
    "epochs are text": (
        written(train=TRAIN[:-1] + ", epochs='2')"),
        r"Train\(epochs='2'\): give it a whole number .*13",
    ),
    "an optimizer of torch": (
        written(train=TRAIN[:-1] + ", optimizer=torch.optim.SGD)"),
        r"Train\(optimizer=.*SGD.*give it SGD\(lr=...\)",
    ),
    "a loss of torch": (
        written(train='Train({"w": down["model"]}, loss=F.cross_entropy)'),
        r"Train\(loss=cross_entropy\) is torch's: .* loss\(model, values, batch, ctx\)",
    ),
    "a loss for each sample": (of_loss(f"return {PER_SAMPLE}"), "1 dimensions, not one number: take `batch.mean`"),
    "a loss that returns nothing": (of_loss(PER_SAMPLE), "does it end in `return`?"),
    "a model without its weights": (of_loss("return model(batch.x).sum()"), r"missing 1 required .*, line 7\)"),
    "a constant that is not given": (
        of_loss("return ctx.center.sum()"),
        r"there is no ctx.center. ctx has: hp .*line 7",
    ),
    "a hyperparameter that is not declared": (of_loss("return ctx.hp.mu"), r"there is no ctx.hp.mu.*line 7"),
    "a constructor as of torch": (
        written("    def __init__(self, model, lr):\n        self.model = model"),
        r"Mine.__init__ should be \(self, hyper\)",
    ),
    "a mean that nobody keeps": (
        written("    def aggregate(self, server, messages):\n        return mean(messages, 'model')"),
        r"Mine.aggregate returned a model, which nobody keeps: server.state\['model'\] = ...",
    ),
    "a state dict of a model value": (
        written("    def aggregate(self, server, messages):\n        messages[0]['model'].state_dict()"),
        r"no messages\[0\]\['model'\].state_dict. .* has: buffers, .*line 18",
    ),
    "a network is kept": (
        written("    def init_client(self, server, client):\n        client.state['net'] = torch.nn.Linear(2, 2)"),
        r"state of client-0\['net'\] may hold model values, tensors and plain values, not Linear",
    ),
    "a hyperparameter without a type": (
        written(loss="class Hyper(Hyperparameters):\n    mu = hp(0.1)"),
        "Field 'mu' requires a type annotation",
    ),
    "a loss calls backward": (
        of_loss(LOSS + "loss.backward()\n    return loss"),
        r"mine \(mine.py\) calls `.backward\(\)` .*: return the loss",
    ),
    "a name is uploaded twice": (
        written().replace(UPLOAD, f"{UPLOAD}\n        {UPLOAD}"),
        r"a second Upload has 'model' again, .* upload a name once .*line 15",
    ),
    "an answer is taken as a pair": (
        written().replace("trained = yield", "trained, loss = yield"),
        r"the answer to Train is no tuple: take trained\['w'\], .*line 13",
    ),
    "a class that is not registered": (written().replace('@METHODS.register("mine")', ""), "unknown method 'mine'"),
}


ALONE = {
    "a branch on a number": (of_loss(LOSS + "return loss if loss > 1 else 2 * loss"), "take `torch.where`.*line 8"),
    "a number of Python": (of_loss(LOSS + "return loss * loss.item()"), "reads a number in Python.*line 8"),
    "a list of Python": (of_loss(LOSS + "return loss * len(batch.y.tolist())"), "compute with torch .*line 8"),
    "a size by numbers": (of_loss(LOSS + "return loss * len(batch.y.unique())"), "multiply by a mask .*line 8"),
    "in place": (of_loss("z = torch.zeros(2)\n    " + LOSS + "z += loss\n    return z.sum()"), "a \\+ b`.*line 9"),
    "an entry in place": (of_loss("z = torch.zeros(2)\n    " + LOSS + "z[0] = loss\n    return z.sum()"), "line 9"),
    "a draw": (of_loss(LOSS + "return loss * torch.rand(())"), "give `Train` the argument `draws=`.*line 8"),
}


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


@pytest.mark.parametrize("mistake", ALONE)
def test_what_makes_clients_run_one_by_one_is_said_in_one_line(mistake: str, tmp_path: Path) -> None:
    text, words = ALONE[mistake]
    file = tmp_path / "mine.py"
    file.write_text(text)
    (said,) = computed(file)
    assert re.search("^mine cannot be mapped over clients and runs one by one: it |a size in it", said)
    assert re.search(words, said), said
    assert len(said) < 220


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_gets_its_line_and_remedy(mistake: str, tmp_path: Path) -> None:
    """In the first round or the first evaluation, before a checkpoint."""
    text, words = MISTAKES[mistake]
    file = tmp_path / "mine.py"
    file.write_text(text)
    with pytest.raises((UserError, TypeError, ValueError, AttributeError, KeyError)) as error:
        computed(file)
    said = in_words(error.value, str(file))
    assert re.search(words, said), said


@pytest.mark.parametrize("executor", ["sequential", "debug"])
def test_backward_in_a_loss_is_named_by_each_executor(executor: Executor, tmp_path: Path) -> None:
    text, words = MISTAKES["a loss calls backward"]
    file = tmp_path / "mine.py"
    file.write_text(text)
    with pytest.raises(UserError, match=words):
        computed(file, executor)
