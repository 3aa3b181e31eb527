"""Mistakes that a new author of a method makes, and what the message says. Each changes one place of the scaffold."""

import itertools
from pathlib import Path

import pytest

from bench import plugin
from bench.conformance import scaffold
from bench.conformance.toy_problem import toy_federation
from bench.errors import UserError, in_words
from bench.plugin import METHODS, file_of, load_file

NAMES = itertools.count()
AT_THE_LOSS = "\ndef local_loss"
CONTEXT = 'context={"center": received.weights})'


@pytest.fixture(autouse=True)
def registries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the methods of a test, as two of them have one name."""
    METHODS.get("fedavg")
    monkeypatch.setattr(METHODS, "_items", {**METHODS._items})
    monkeypatch.setattr(plugin, "_FILES", {**plugin._FILES})


def written(folder: Path, *changes: tuple[str, str]) -> Path:
    """A scaffold with these changes, in a file of a new name."""
    file, _ = scaffold.write(f"mistaken_{next(NAMES)}", folder)
    text = file.read_text(encoding="utf-8")
    for before, after in changes:
        assert before in text, before
        text = text.replace(before, after)
    file.write_text(text.replace("    hp,\n", "    hp,\n    mean,\n"), encoding="utf-8")
    return file


def said_of(file: Path) -> str:
    """The message that a cell of the file's method would end with; empty if it runs."""
    load_file(file)
    try:
        federation = toy_federation(file.stem)
        federation.advance()
        federation.evaluate()
    except Exception as error:
        return in_words(error, file_of(METHODS.get(file.stem)))
    return ""


def test_the_scaffold_has_no_mistake(tmp_path: Path) -> None:
    assert said_of(written(tmp_path)) == ""


def test_a_forgotten_yield_is_refused_with_its_line(tmp_path: Path) -> None:
    file = written(tmp_path, ("yield Upload", "Upload"))
    number = next(i for i, text in enumerate(file.read_text().splitlines(), 1) if "Upload({" in text)
    with pytest.raises(UserError, match=r"is never yielded, .*: write `yield Upload") as refused:
        load_file(file)
    assert str(refused.value).startswith(f"{file}:{number}: ")


@pytest.mark.parametrize(
    "changes",
    [
        [("trained = yield Train(", "request = Train("), (CONTEXT, f"{CONTEXT}\n        trained = yield request")],
        [("yield Upload(", "yield from map(lambda one: one, [Upload("), ('trained["w"]})', 'trained["w"]})])')],
    ],
)
def test_a_request_in_a_variable_is_no_mistake(changes: list[tuple[str, str]], tmp_path: Path) -> None:
    assert said_of(written(tmp_path, *changes)) == ""


def hook(signature: str, line: str) -> tuple[str, str]:
    """The change that gives the method a further function of this body."""
    return AT_THE_LOSS, f"\n    def {signature}:\n        {line}\n\n{AT_THE_LOSS}"


UPLOAD = 'yield Upload({"model": trained["w"]})'


@pytest.mark.parametrize(
    ("change", "says"),
    [
        # names: of hyperparameters, of the context, of values, of what is downloaded, trained, kept and received
        (("ctx.hp.mu", "ctx.hp.mew"), "declare it in the method's class `Hyper`. ctx.hp has: mu (FILE, line 58)"),
        (("ctx.center", "ctx.centre"), "by `context=` of `Train`. Did you mean 'center'? ctx has: center, hp (FILE, "),
        (("= down", "= self.hp.nu and down"), "there is no self.hp.nu. Did you mean 'mu'? self.hp has"),
        (('values["w"].weights', 'values["v"].weights'), "there is no values['v']. values has: w (FILE"),
        (('down["model"]', 'down["modle"]'), "what a client receives. Did you mean 'model'? down"),
        (('return trained["w"]', 'return trained["v"]'), "there is no trained['v']. trained has: w (FILE"),
        (("= down", '= client.state["w"] and down'), "there is no client.state['w']: fill it in `init_client`. (FILE"),
        (("= down", "= client.size and down"), "client has: id, label_counts, n_earlier, n_train, state (FILE"),
        (("return cross", "model.heads\n    return cross"), "there is no model.heads. Did you mean 'head'? model has"),
        (("return cross", "batch.labels\n    return cross"), "there is no batch.labels. batch has: "),
        (hook("aggregate(self, server, messages)", 'messages[0]["w"]'), "messages[0]['w']. messages[0] has: model ("),
        (hook("init(self, server)", "server.classes"), "no server.classes. Did you mean 'num_classes'? server has: "),
        (hook("init(self, server)", "server.state.get('w').weights"), "'NoneType' object has no attribute 'weights' ("),
        # what the server sends, and how many classes it knows
        (hook("init(self, server)", "pass"), ".init put no 'model' into server.state, which mean_of names"),
        (
            hook("init(self, server)", 'server.state["model"] = server.initial_model(classes=1)'),
            "a label is larger than the model's 1 outputs allow: its last layer should have server.num_classes of them",
        ),
        # uploads
        (('"model": trained["w"]}', '"model": trained["w"]}, weight=0.0'), "of all messages with 'model' sum to 0"),
        (hook("aggregate(self, server, messages)", 'mean(messages, "w")'), "no client sent 'w', but 'model'"),
        # what is yielded
        ((UPLOAD, 'yield {"model": trained["w"]}'), "a dict was yielded, which is no"),
        ((UPLOAD, "yield Upload"), "the class Upload was yielded, not a request"),
        ((UPLOAD, "yield"), "a NoneType was yielded, which is no request"),
        ((UPLOAD, "yield self.client_round(client, down)"), "write `yield from` (FILE"),
        ((" # averaged with", ", # averaged with"), "a tuple was yielded: yield requests one by one, without a comma"),
        # what is returned
        (('return trained["w"]', "return trained"), "client_round gave Trained where a model value is due, for"),
        (('return trained["w"]', 'return trained["w"], 1'), "client_round gave tuple where a model value is due"),
        (("return cross_entropy(model, values, batch, ctx)", "return 1.0  #"), "returned float, not a tensor"),
    ],
)  # fmt: skip
def test_says_what_is_wrong_and_what_to_write(change: tuple[str, str], says: str, tmp_path: Path) -> None:
    file = written(tmp_path, change)
    assert says.replace("FILE", file.name) in said_of(file)


def test_a_round_that_is_no_program(tmp_path: Path) -> None:
    file = written(tmp_path, ("trained = yield Train(", "trained = (lambda *a, **k: down)("), ("yield Upload", "print"))
    file.write_text(file.read_text().replace('print({"model": trained["w"]})', "").replace('trained["w"]', "None"))
    assert "a round gave NoneType, not a program: it has to `yield` at least one request" in said_of(file)
