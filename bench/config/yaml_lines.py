"""A YAML reader that reports problems with their lines, and several problems at once.

Scalars follow the core schema of YAML 1.2, not PyYAML's 1.1: `1e-3` is a number, `no` and `2024-01-01` are text.
"""

import math
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import yaml

from bench.errors import UserError

Path = tuple[str | int, ...]  # the keys and list positions from the top of the document to a value

MAX_CHARACTERS = 200_000
MAX_VALUES = 20_000  # after expansion of aliases
MAX_DEPTH = 16
MAX_PROBLEMS = 10


@dataclass
class Document:
    """Plain values (dict, list, text, numbers, booleans, None) with the line of each, and the problems found in them.

    Attributes:
        data: the content.
        source: name of the file in messages.
    """

    data: Any
    source: str
    _places: dict[Path, tuple[int, str]] = field(default_factory=dict)
    _problems: dict[tuple[Path, str], tuple[int, str]] = field(default_factory=dict)
    _above: Path = ()

    def complain(self, path: Path, problem: str, line: int | None = None) -> None:
        """Note a problem of the value at `path`, or of a given `line`.

        Only the first problem of a value is kept, because later ones follow from it.
        """
        where = self._place(path) if line is None else (line, f"{self.source}:{line}")
        what = "" if path and line is None else problem
        self._problems.setdefault(((*self._above, *path), what), (where[0], f"{where[1]}: {problem}"))

    @contextmanager
    def noting(self, path: Path) -> Iterator[None]:
        """Turn a `UserError` inside the block into a problem of the value at `path`."""
        try:
            yield
        except UserError as error:
            self.complain(path, str(error))

    def check(self) -> None:
        """Raise an error if problems have been noted.

        Raises:
            UserError: one line per problem, `FILE:LINE: ...`, sorted by line; at most ten.
        """
        if not self._problems:
            return
        lines = [text for _, text in sorted(self._problems.values(), key=lambda problem: problem[0])]
        hidden = len(lines) - MAX_PROBLEMS
        more = [f"... and {hidden} more"] if hidden > 0 else []
        raise UserError("\n".join(lines[:MAX_PROBLEMS] + more))

    def put(self, key: str, value: Any, origin: str) -> None:
        """Set a key of the top mapping to a value from `origin`, such as an option, instead of a line of the file."""
        self.data[key] = value
        self._places = {path: place for path, place in self._places.items() if path[:1] != (key,)}
        self._places[(key,)] = (0, origin)

    def remove(self, path: Path, position: int) -> None:
        """Remove an entry of the list at `path`; the others keep their lines."""
        values = self.data
        for step in path:
            values = values[step]
        del values[position]
        places: dict[Path, tuple[int, str]] = {}
        for place, line in self._places.items():
            step = place[len(path)] if place[: len(path)] == path and len(place) > len(path) else -1
            if isinstance(step, int) and step > position:
                places[(*path, step - 1, *place[len(path) + 1 :])] = line
            elif step != position:
                places[place] = line
        self._places = places

    def overridden(self, key: str) -> bool:
        """Whether a key of the top mapping was set by `put` and is not from the file."""
        return self._places.get((key,), (1, ""))[0] == 0

    def part(self, key: str) -> "Document":
        """The value under a key as a separate document; problems noted in it are also problems of this document."""
        places = {path[1:]: place for path, place in self._places.items() if path[:1] == (key,)}
        return Document(self.data[key], self.source, places, self._problems, (*self._above, key))

    def place(self, path: Path, line: int) -> None:
        """Record the line of the value at `path`."""
        self._places[path] = (line, f"{self.source}:{line}")

    def _place(self, path: Path) -> tuple[int, str]:
        while path and path not in self._places:
            path = path[:-1]
        return self._places.get(path, (1, f"{self.source}:1"))


def parse(text: str, source: str) -> Document:
    """Read one YAML document; the data of an empty one is None.

    Keys become text. Duplicate keys, keys that are neither text nor integers, and scalars that do not match their tag
    are noted as problems.

    Raises:
        UserError: the text is not valid YAML, or it is too large or too deeply nested for a grid.
    """
    if len(text) > MAX_CHARACTERS:
        raise UserError(f"{source}: {len(text)} characters are too many for a grid; the limit is {MAX_CHARACTERS}")
    try:
        root = _Loader(text).get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = ", ".join(filter(None, [error.context, error.problem]))
        raise UserError(f"{source}:{mark.line + 1 if mark else 1}: not valid YAML: {problem}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise UserError(f"{source}:{line}: not valid YAML: a control character") from None
    except (ValueError, OverflowError):  # raised by chr() inside PyYAML
        raise UserError(f"{source}: not valid YAML: an escape beyond Unicode") from None
    document = Document(None, source)
    if root is not None:
        document.data = _Converter(document).value(root, (), _line(root))
    return document


def of_values(values: Mapping[Any, Any], source: str) -> Document:
    """Make a document of values from Python; problems name their place in it, e.g. `grid['methods'][0]`.

    Tuples become lists, paths text, and scalars of numpy numbers. What a file could not hold is noted as a problem.

    Raises:
        UserError: the values are too many or too deeply nested for a grid.
    """
    document = Document(None, source)
    document.data = _Plain(document).value(values, ())
    return document


class _Plain:
    """Turns values of Python into those that a YAML file could hold, and notes their places."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.seen = 0

    def value(self, value: Any, path: Path) -> Any:
        place = self.document.source + "".join(f"[{step!r}]" for step in path)
        self.seen += 1
        self.document._places[path] = (self.seen, place)
        if self.seen > MAX_VALUES or len(path) > MAX_DEPTH:  # a list may contain itself
            raise UserError(f"{place}: more values than a grid may have, or nested deeper than {MAX_DEPTH} levels")
        if isinstance(value, Mapping):
            return self._mapping(value, path)
        if isinstance(value, list | tuple | range):
            return [self.value(entry, (*path, i)) for i, entry in enumerate(value)]
        if type(value).__module__ == "numpy" and hasattr(value, "item") and not getattr(value, "ndim", 1):
            value = value.item()
        if isinstance(value, os.PathLike):
            value = os.fspath(value)
        if value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value)):
            return value
        self.document.complain(path, f"{str(value)[:40]} ({type(value).__name__}) is no value that a grid can hold")
        return None

    def _mapping(self, value: Mapping[Any, Any], path: Path) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key, entry in value.items():
            if not isinstance(key, str | int) or isinstance(key, bool):  # {3: 1}: 3 is a client's number
                self.document.complain(path, f"the key {key!r} is neither text nor a number of a client")
            elif str(key) in result:
                self.document.complain(path, f"the key {str(key)!r} is given twice")
            else:
                result[str(key)] = self.value(entry, (*path, str(key)))
        return result


def parse_assignment(text: str, example: str) -> tuple[str, Any]:
    """Key and YAML value of a `key=value` of `--set`; `example` is one for the message.

    Raises:
        UserError: it is not that, or the value is not valid YAML.
    """
    key, equals, value = text.partition("=")
    if not equals or not re.fullmatch(r"[\w.-]+", key):
        raise UserError(f"--set {text}: write key=value, for instance --set {example}")
    document = parse(value, f"--set {key}")
    document.check()
    return key, document.data


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[Any, Any] = {}  # noqa: RUF012  PyYAML's own name and type; filled below

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        # PyYAML composes recursively: without this limit, a long row of brackets causes a RecursionError
        if self.depth > MAX_DEPTH:
            raise yaml.MarkedYAMLError(problem=f"nested deeper than {MAX_DEPTH} levels", problem_mark=self.get_mark())
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


# A site `007` is a text: with a leading zero it is no number here, where YAML 1.1 reads octal digits and 1.2 reads 7.
for _tag, _pattern, _first in [
    ("null", r"(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    ("bool", r"(?:true|True|TRUE|false|False|FALSE)$", list("tTfF")),
    ("int", r"(?:[-+]?(?:0|[1-9][0-9]*)|0o[0-7]+|0x[0-9a-fA-F]+)$", list("-+0123456789")),
    ("float", r"[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?$", list("-+.0123456789")),
]:
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(_pattern), _first)


class _Dumper(yaml.SafeDumper):
    """Quotes text that either version of YAML would read as something else, such as `1e-3` or `no`."""

    yaml_implicit_resolvers: dict[Any, Any] = {  # noqa: RUF012  PyYAML's own name and type
        first: [
            *yaml.SafeDumper.yaml_implicit_resolvers.get(first, []),
            *_Loader.yaml_implicit_resolvers.get(first, []),
        ]
        for first in {*yaml.SafeDumper.yaml_implicit_resolvers, *_Loader.yaml_implicit_resolvers}
    }


def dump(data: Any) -> str:
    """The text of plain values, from which `parse` reads them again."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


class _Converter:
    """Turns nodes into plain values and notes their lines."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.seen = 0

    def value(self, node: yaml.Node, path: Path, line: int) -> Any:
        self.document.place(path, line)
        self.seen += 1
        if self.seen > MAX_VALUES or len(path) > MAX_DEPTH:  # aliases can make both grow without limit
            raise UserError(f"{self.document.source}:{line}: more values than a grid may have, its aliases expanded")
        if node.tag == "tag:yaml.org,2002:map" and isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if node.tag == "tag:yaml.org,2002:seq" and isinstance(node, yaml.SequenceNode):
            return [self.value(child, (*path, i), _line(child)) for i, child in enumerate(node.value)]
        try:
            return _scalar(node)
        except ValueError as error:
            self.document.complain(path, str(error))
            return None

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key, line = key_node.value, _line(key_node)
            if key_node.tag not in ("tag:yaml.org,2002:str", "tag:yaml.org,2002:int"):  # `3: 1`: 3 is a client's number
                shown = repr(key[:40]) if isinstance(key, str) else "(a list or mapping)"
                self.document.complain(path, f"the key {shown} is neither text nor a number of a client", line)
            elif key in result:
                self.document.complain(path, f"the key {key!r} is given twice", line)
            else:
                result[key] = self.value(value_node, (*path, key), line)
        return result


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _scalar(node: yaml.Node) -> str | int | float | bool | None:
    """The value of a scalar.

    Raises:
        ValueError: it does not match its tag, or a grid cannot hold such a value.
    """
    kind = node.tag.removeprefix("tag:yaml.org,2002:")
    if not isinstance(node, yaml.ScalarNode):
        raise ValueError(f"values of the kind {kind!r} are not understood")
    text: str = node.value
    if kind == "str":
        if any("\ud800" <= letter <= "\udfff" for letter in text):
            raise ValueError(f"{text!r} is not valid Unicode")
        return text
    if kind == "null":
        return None
    if kind == "bool" and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if kind == "int" and re.fullmatch(r"[-+]?[0-9]{1,30}", text):
        return int(text)
    if kind == "int" and re.fullmatch(r"0o[0-7]{1,30}|0x[0-9a-fA-F]{1,30}", text):
        return int(text, 0)
    if kind == "float" and math.isfinite(number := float(text)):
        return number
    raise ValueError(f"{text[:40]!r} is no value of the kind {kind!r} that a grid can hold")
