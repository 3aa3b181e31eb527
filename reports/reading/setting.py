"""Description of what a store's cells were trained on, in one line for headers and captions."""

from typing import Any

from reports.reading.load import Store
from reports.reading.names import setting_text


def described(store: Store) -> str:
    """Data, clients, alpha, model, rounds and seeds; where tasks differ, all values."""
    parts = [
        ", ".join(dict.fromkeys(cell.flat["dataset"] for cell in store.cells)),
        *(f"{name} {values}" for name, values in _partitions(store).items()),
        _values(store, "clients") + " clients",
        *([f"{shares} of them a round"] if (shares := _shares(store)) != "100 %" else []),
        f"model {_values(store, 'model')}",
        f"{_values(store, 'rounds')} rounds",
        f"{len({cell.seed for cell in store.cells})} seeds",
    ]
    return (
        ", ".join(parts).replace("1 seeds", "1 seed") if len({c.seed for c in store.cells}) == 1 else ", ".join(parts)
    )


def _partitions(store: Store) -> dict[str, str]:
    """Collect the concentrations of each partition rule; a rule without any has its name alone."""
    alphas: dict[str, list[Any]] = {}
    for cell in store.cells:
        settings = cell.view.settings
        values = alphas.setdefault(settings.partition, [])
        if settings.alpha is not None and settings.alpha not in values:
            values.append(settings.alpha)
    return {
        name: f"α={_list([f'{value:g}' for value in values])}" if values else "partition"
        for name, values in alphas.items()
    }


def _shares(store: Store) -> str:
    return _list([f"{100 * value:g} %" for value in dict.fromkeys(c.view.settings.participation for c in store.cells)])


def _values(store: Store, name: str) -> str:
    return _list([setting_text("", value)[1:] for value in dict.fromkeys(cell.flat[name] for cell in store.cells)])


def _list(values: list[str]) -> str:
    return values[0] if len(values) == 1 else f"{', '.join(values[:-1])} and {values[-1]}"
