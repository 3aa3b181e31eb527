"""What is said of an error in a user's file."""

import importlib.util
import sys
from pathlib import Path

import pytest

from bench.errors import in_words

SOURCE = """
import types


class Proxy:
    @property
    def inner(self):
        return self.nothing

    def __getattr__(self, name):
        raise AttributeError("by hand")


def tall():
    entries = {"first": 1, "second": 2}
    return entries[
        "frist"
    ]


def called():
    return make()["a"]


def make():
    return {"b": made.append(1)}


made = []


def number():
    return {1: 2}[3]


def of_many():
    names = types.SimpleNamespace(**{f"n{i}": i for i in range(99)})
    return names.n_7


def of_nobody():
    model = None
    return model.weights


def by_hand():
    return Proxy().other


"""


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("tall", "there is no entries['frist']. Did you mean 'first'? entries has: first, second (mine.py, line "),
        ("called", "there is no make()['a']. (mine.py, line "),  # nothing of the user's is called once more
        ("number", "KeyError: 3 (mine.py, line "),
        ("of_many", "there is no names.n_7. Did you mean 'n"),
        ("of_nobody", "AttributeError: there is no model.weights. model is None (mine.py, line "),
        ("by_hand", "AttributeError: by hand (mine.py, line "),
    ],
)
def test_in_words(name: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "mine.py"
    file.write_text(SOURCE, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("mine_with_errors", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "mine_with_errors", module)
    spec.loader.exec_module(module)
    with pytest.raises(Exception) as caught:  # noqa: PT011 (each function raises an error of its own kind)
        getattr(module, name)()
    said = in_words(caught.value, str(file))
    assert says in said
    assert len(said) < 200
    if name == "called":
        assert module.made == [1]


def test_a_file_that_was_changed_since_and_one_that_is_not_in_the_traceback(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def get(down):\n    return down['modle']\n", encoding="utf-8")
    code: dict[str, object] = {}
    exec(compile(file.read_text(), str(file), "exec"), code)
    file.write_text("def get(:\n", encoding="utf-8")
    with pytest.raises(KeyError) as caught:
        code["get"]({"model": 1})  # type: ignore[operator]
    assert in_words(caught.value, str(file)) == "KeyError: 'modle' (mine.py, line 2)"
    assert in_words(caught.value, "/another.py") == "KeyError: 'modle'"
    assert in_words(caught.value, None) == "KeyError: 'modle'"
