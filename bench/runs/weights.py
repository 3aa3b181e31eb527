"""Tables of the tensors that models take from files of pretrained weights, for `bench show`."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from bench.errors import UserError
from bench.settings import Settings

_NAMED = 20  # tensors; the others are counted


def weights_table(cells: Iterable[Settings], data_root: Path) -> Iterator[str]:
    """Lines for each file and model: tensors taken from the file, reset (they are drawn), and left in the file.

    A data set that is not there leaves the shape of its samples unknown, and a file may not fit; a line says so.
    """
    seen = set()
    for cell in cells:
        options = json.dumps([cell.model_options, cell.dataset_options], sort_keys=True)
        at = cell.pretrained, cell.model, cell.dataset, options
        if cell.pretrained is not None and at not in seen:
            seen.add(at)
            yield f"pretrained {cell.pretrained} for model {cell.model} of dataset {cell.dataset}:"
            try:
                yield from _lines(cell, data_root)
            except UserError as error:
                yield f"  {error}"


def _lines(cell: Settings, data_root: Path) -> list[str]:
    from bench.models.factory import build
    from bench.models.pretrained import match
    from bench.runs.forecast.outline import data_size

    size = data_size(cell, data_root)
    if size is None:
        return [f"  not known before the data set is in {data_root}"]
    matched = match(Path(str(cell.pretrained)), build(cell.model, size.shape, size.classes, cell.model_options))
    first, key = next(iter(matched.taken.items()), ("", ""))
    return [
        f"  taken  {len(matched.taken):>4}  {f'{first} is {key}, ...' if first else ''}".rstrip(),
        f"  reset  {len(matched.reset):>4}  {_named(matched.reset)}".rstrip(),
        f"  left   {len(matched.left):>4}  {_named(matched.left)}".rstrip(),
    ]


def _named(shapes: dict[str, tuple[int, ...]]) -> str:
    listed = [f"{name} {shape}" for name, shape in list(shapes.items())[:_NAMED]]
    return ", ".join(listed + ["..."] * (len(shapes) > _NAMED))
