"""Overrides of a grid file: `--set key=value` replaces a key everywhere in it."""

from typing import Any

from bench.config import yaml_lines
from bench.config.grid_file import AXES, TEXTS
from bench.config.yaml_lines import Document, Path
from bench.errors import UserError


def override(document: Document, text: str) -> None:
    """Set `key=value` at the top level and remove the key everywhere else in the document.

    Entries of a list that differed in nothing else become one, because they are the same cells now.

    Raises:
        UserError: the text is no `key=value`, its value is not valid YAML, or the key was set before.
    """
    key, value = yaml_lines.parse_assignment(text, "rounds=5")
    singular = AXES.get(key, key)
    names = (singular, *(many for many, singular_name in AXES.items() if singular_name == singular))
    if before := [name for name in names if document.overridden(name)]:
        raise UserError(f"--set {text}: --set {before[0]}=... is given, too, and only one can count: give it once")
    if key in TEXTS:
        document.put(key, value, f"--set {key}")
        return
    for name in names:
        document.data.pop(name, None)
    document.put(key, value, f"--set {key}")
    if isinstance(vary := document.data.get("vary"), dict) and key != "vary":
        vary.pop(singular, None)
    for section in ("cases", "datasets", "methods", "cells"):
        if section == key:
            continue
        entries = document.data.get(section)
        for i, entry in enumerate(entries if isinstance(entries, list) else []):
            if section == "datasets" and isinstance(entry, dict):
                _strip(document, entry, "cases", (section, i), singular)
        _strip(document, document.data, section, (), singular)


def _strip(document: Document, holder: dict[str, Any], section: str, above: Path, key: str) -> None:
    """Remove a key from the entries of a section, and the entries that then are equal to an earlier one."""
    entries = holder.get(section)
    if not isinstance(entries, list) or True not in [_strip_entry(entry, section, key) for entry in entries]:
        return
    plain = [_without_name(entry) if section == "cases" else entry for entry in map(_mapping, entries)]
    for i in reversed(range(len(entries))):
        if plain[i] in plain[:i]:
            document.remove((*above, section), i)
    if section == "cases" and not any(map(_without_name, entries)):  # nothing is left that a case could say
        del holder[section]
    elif section == "cases":
        for entry in entries:
            if entry == {}:
                entry["name"] = "default"


def _strip_entry(entry: Any, section: str, key: str) -> bool:
    """Remove a key from an entry, and its `set` if that gets empty; tell whether it was there."""
    if not isinstance(entry, dict):
        return False
    method, _, hyperparameter = key.partition(".")
    size = len(entry)
    if section in ("cases", "cells") or (section, key) == ("methods", "server"):
        entry.pop(key, None)
    if section == "methods" and entry.get("name") == method:
        entry.pop(hyperparameter, None)
    inner = entry.get("set")
    if isinstance(inner, dict) and key in inner:
        del inner[key]
        if not inner:
            del entry["set"]
        return True
    return len(entry) < size


def _mapping(entry: Any) -> Any:
    """The entry of a method or data set that is given by its name alone, as a mapping."""
    return {"name": entry} if isinstance(entry, str) else entry


def _without_name(entry: Any) -> Any:
    return {key: value for key, value in entry.items() if key != "name"} if isinstance(entry, dict) else entry
