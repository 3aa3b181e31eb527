"""Grids that list their cells instead of axes, such as the `best.yaml` that `bench sweep` writes."""

from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from bench.config.checked import checked
from bench.config.grid_file import numbered, read_scalars, refuse_both, setting_name
from bench.config.validation import check_setting, unknown
from bench.config.yaml_lines import Document, Path, dump
from bench.errors import UserError
from bench.plugin import loaded_files
from bench.settings import Settings, data_name

KEYS = ("name", "description", "published", "plugins", "seeds", "cells")


def read_listed(document: Document) -> list[Settings]:
    """Read the cells of a grid with `cells:`: one cell for each entry and each of the `seeds`.

    An entry overrides the settings at the top. Keys are those of `Settings`; a method's hyperparameters are under `hp`.
    Problems are noted in the document.
    """
    data, entries = document.data, document.data["cells"]
    common = {key: value for key, value in data.items() if key not in KEYS}
    sound = _sound(document, common, ())
    seeds = [data.get("seed", Settings.model_fields["seed"].default)]
    if "seeds" in data:
        refuse_both(document, "seeds")
        seeds = [choice.value for choice in read_scalars(document, "seeds")]
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
        document.complain(("cells",), "cells should be a list of mappings, for instance [{method: fedavg, lr: 0.1}]")
        return []
    cells: list[tuple[int, Settings]] = []
    for i, entry in enumerate(entries):
        if ("cells", i) in document.merged:
            continue
        if "seed" in entry and "seeds" in data:
            document.complain(("cells", i, "seed"), "'seed' is varied by `seeds` of this grid; do not set it here too")
        elif _sound(document, entry, ("cells", i)) and sound:
            of_seeds = [entry["seed"]] if "seed" in entry else seeds
            with document.noting(("cells", i)):
                cells += [(i, _cell({**common, **entry, "seed": seed})) for seed in of_seeds]
    earlier: dict[str, int] = {}
    for i, cell in cells:
        if earlier.setdefault(cell.model_dump_json(), i) != i:
            document.complain(("cells", i), "the same cell stands above: the two could not be told apart")
    return _told_apart(cells, entries)


def _sound(document: Document, settings: dict[str, Any], path: Path) -> bool:
    """Whether every setting is known and has a value of its type; what is wrong is noted."""
    sound = True
    for key, value in settings.items():
        try:
            if key not in Settings.model_fields:
                raise UserError(unknown("setting", key, [*KEYS, *Settings.model_fields]))
            check_setting(key, value)
        except UserError as error:
            sound = False
            document.complain((*path, key), str(error))
    return sound


def _cell(settings: dict[str, Any]) -> Settings:
    """The complete settings of a cell.

    Raises:
        UserError: values that do not go together, or options that a name does not have.
    """
    try:
        cell = Settings.model_validate(settings)
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    return checked(cell)


def _told_apart(cells: list[tuple[int, Settings]], entries: list[dict[str, Any]]) -> list[Settings]:
    """Give cells that would have one name in tables a `case` that says how their entries differ, e.g. `lr=0.1`.

    Entries of different seeds may have one name: so a sweep writes the choices of several draws.

    Args:
        cells: each with the number of its entry.
        entries: the entries as they were written.
    """
    of_name: dict[tuple[Any, ...], list[int]] = {}
    for i, cell in cells:
        name = (cell.name, data_name(cell.dataset, cell.dataset_options), cell.case, cell.alpha, cell.seed)
        of_name.setdefault(name, []).append(i)
    texts: dict[int, str] = {}
    for same in of_name.values():
        if len(same) > 1:
            texts |= dict(zip(same, _differences([entries[i] for i in same]), strict=True))
    return [
        cell.model_copy(update={"case": ", ".join(filter(None, [cell.case, texts[i]]))}) if i in texts else cell
        for i, cell in cells
    ]


def _differences(entries: list[dict[str, Any]]) -> list[str]:
    """The text of each entry's settings that not all entries have."""
    opened = [entry | {f"hp.{key}": value for key, value in entry.get("hp", {}).items()} for entry in entries]
    named = [{k: v for k, v in entry.items() if k not in ("label", "case", "seed", "hp")} for entry in opened]
    shared = {key for key in named[0] if all(key in entry and entry[key] == named[0][key] for entry in named)}
    return numbered([" ".join(setting_name(k, v) for k, v in entry.items() if k not in shared) for entry in named])


def write_listed(name: str, description: str, cells: Sequence[Settings]) -> str:
    """The text of a grid with exactly these cells; settings with their default value are left out."""
    cells = list({cell.model_dump_json(): cell for cell in cells}.values())
    plain = [cell.model_dump(mode="json", exclude_defaults=True, exclude={"seed"}) for cell in cells]
    seeds = list(dict.fromkeys(cell.seed for cell in cells))
    entries = [entry for i, entry in enumerate(plain) if entry not in plain[:i]]
    every_seed = len(entries) * len(seeds) == len(cells)
    if not every_seed:  # entries of other seeds, as of a study with several draws, say which are theirs
        entries = [{**entry, "seed": cell.seed} for entry, cell in zip(plain, cells, strict=True)]
    shared = {key: value for key, value in entries[0].items() if all(entry.get(key) == value for entry in entries)}
    content: dict[str, Any] = {"name": name, "description": description}
    if files := loaded_files():
        content["plugins"] = [str(file) for file in files]
    content |= shared | ({"seeds": seeds} if every_seed else {})
    content["cells"] = [{key: value for key, value in entry.items() if key not in shared} for entry in entries]
    return dump(content)
