"""What is said of an error in a user's file."""

from pathlib import Path
from typing import Any

import pytest

from bench.errors import in_words

FAILING = [
    (
        'def tall():\n    entries = {"first": 1, "second": 2}\n    return entries[\n        "frist"\n    ]\n\ntall()\n',
        "there is no entries['frist']. Did you mean 'first'? entries has: first, second (mine.py, line ",
    ),
    (  # nothing of the user's is called once more
        'made = []\n\ndef make():\n    return {"b": made.append(1)}\n\nmake()["a"]\n',
        "there is no make()['a']. (mine.py, line ",
    ),
    (
        'class Strict(dict):\n    def __missing__(self, key):\n        raise KeyError\n\nStrict()["a"]\n',
        "KeyError:  (mine.py, line ",
    ),
    ("{1: 2}[3]\n", "KeyError: 3 (mine.py, line "),
    ('{"a": {}}["a"]["b"]\n', "there is no {'a': {}}['a']['b']."),
    (
        'import types\nnames = types.SimpleNamespace(**{f"n{i}": i for i in range(99)})\nnames.n_7\n',
        "there is no names.n_7. Did you mean 'n",
    ),
    ("model = None\nmodel.weights\n", "AttributeError: 'NoneType' object has no attribute 'weights' (mine.py, line "),
    (
        'class Proxy:\n    def __getattr__(self, name):\n        raise AttributeError("by hand")\n\nProxy().other\n',
        "AttributeError: by hand (mine.py, line ",
    ),
    ('import json\njson.loads("{")\n', "JSONDecodeError: Expecting property name"),
]


def failure(file: Path, text: str) -> tuple[Exception, dict[str, Any]]:
    """The error of a file when it is run, and what it has defined until then."""
    file.write_text(text, encoding="utf-8")
    names: dict[str, Any] = {}
    with pytest.raises(Exception) as caught:  # noqa: PT011 (each file raises an error of its own kind)
        exec(compile(text, str(file), "exec"), names)
    return caught.value, names


@pytest.mark.parametrize(("text", "says"), FAILING)
def test_in_words(text: str, says: str, tmp_path: Path) -> None:
    error, names = failure(tmp_path / "mine.py", text)
    said = in_words(error, str(tmp_path / "mine.py"))
    assert says in said
    assert len(said) < 200
    assert names.get("made", [1]) == [1]


def test_a_file_that_was_changed_since_and_one_that_is_not_in_the_traceback(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    error, _ = failure(file, "down = {'model': 1}\ndown['modle']\n")
    file.write_text("def get(:\n", encoding="utf-8")
    assert in_words(error, str(file)) == "KeyError: 'modle' (mine.py, line 2)"
    assert in_words(error, "/another.py") == "KeyError: 'modle'"
    assert in_words(error, None) == "KeyError: 'modle'"
