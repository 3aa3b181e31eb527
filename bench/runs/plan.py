"""The plan of a run: which cells there are, and whether their data are there."""

import contextlib
import functools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from bench.config.digests import versions
from bench.config.identity import description
from bench.config.yaml_lines import parse
from bench.data import Dataset
from bench.errors import UserError, did_you_mean
from bench.federation.cell_data import as_trained, check_tests, load_dataset, load_partition, load_public, tested
from bench.federation.cell_identity import DATA_FIELDS, Identities
from bench.plugin import METHODS, MODELS, SERVER_RULES
from bench.results.cell_names import cell_name
from bench.results.remarks import gathered, partition_remarks
from bench.results.results import load_run
from bench.runs.forecast.outline import DataSize
from bench.settings import SCORING, AdapterSettings, Settings
from bench.store.data_record import partition_record

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class PlannedCell:
    """A cell, and what is known of it before it runs.

    Attributes:
        id: the name of its folder.
        settings: its settings.
        notes: of how its data were read (`Dataset.notes`), and of what its server tolerates.
        remarks: oddities of its partition (`bench.results.remarks`).
        record: content of its `partition.json`.
    """

    id: str
    settings: Settings
    notes: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    record: dict[str, Any] = field(default_factory=dict, compare=False)


def plan(cells: Iterable[Settings], data_root: Path, *, download: bool) -> list[PlannedCell]:
    """Load every data set and make every partition once, so that a run starts only where all its cells can.

    Raises:
        UserError: data is missing or damaged, or cannot be divided as asked for; or one cell should be scored in two
            ways.
    """
    planner = _Planner(data_root, download=download)
    planned = [planner.plan(settings) for settings in cells]
    _refuse_other_scoring(planned)
    return planned


def plan_available(cells: Iterable[Settings], data_root: Path) -> tuple[list[PlannedCell], dict[str, int]]:
    """Plan the cells that can run now, and count the others by the reason why they cannot.

    Returns:
        The planned cells, and numbers of cells by reason.
    """
    planner = _Planner(data_root, download=False)
    planned: list[PlannedCell] = []
    missing: Counter[str] = Counter()
    for settings in cells:
        try:
            planned.append(planner.plan(settings))
        except UserError as error:
            missing[str(error)] += 1
    return planned, dict(missing)


def check_methods(cells: Iterable[Settings]) -> None:
    """Refuse cells whose method does not go with their settings.

    Raises:
        UserError: there is such a cell.
    """
    from bench.federation.setup import make_method  # here, as it takes torch

    for settings in cells:
        make_method(settings)


def pointless(cells: Iterable[Settings]) -> list[str]:
    """Warnings about settings that make a method, its server rule or training pointless, each once; the run continues,
    as the user may want them."""
    texts: dict[str, None] = {}
    for settings in cells:
        parts = [(METHODS, settings.method, settings.hp)]
        if settings.server is not None:
            parts.append((SERVER_RULES, settings.server.name, settings.server.options))
        for registry, name, values in parts:
            said: list[str] = getattr(registry.options(name)(**values), "degenerate", list)()
            texts |= {f"{settings.name}: {text}": None for text in said}
    return [*texts, *dict.fromkeys(f"{cell.name}: {text}" for cell in cells if (text := _no_steps(cell)))]


def _no_steps(settings: Settings) -> str:
    """A warning if rounds have no local steps, else an empty string."""
    key = "epochs" if settings.steps is None else "steps"
    if getattr(settings, key):
        return ""
    return f"{key} = 0: a round has no local steps but those that the method counts itself"


def _refuse_other_scoring(planned: Sequence[PlannedCell]) -> None:
    """Refuse a cell that is there twice with different settings of `SCORING`, which are no part of its id.

    Raises:
        UserError: there is such a cell.
    """
    known: dict[str, Settings] = {}
    for cell in planned:
        first = known.setdefault(cell.id, cell.settings)
        for name in sorted(SCORING):
            if getattr(first, name) != getattr(cell.settings, name):
                raise UserError(
                    f"{cell_name(cell.settings)}: the grid has this cell twice with different `{name}`, which is "
                    "not part of its id; write it once, at the top of the grid"
                )


_PUBLIC_FIELDS = {"public", "dp_sgd", "channel"}
"""Settings on which public samples depend beside `DATA_FIELDS`: noise for privacy forbids some."""


class _Planner:
    """Makes every partition once."""

    def __init__(self, data_root: Path, *, download: bool) -> None:
        self._data_root = data_root
        self._download = download
        self._identities = Identities(data_root, download=download)
        self._unreadable: dict[str, str] = {}  # data sets, and why
        # of each partition its hash, remarks and record
        self._partitions: dict[str, tuple[str, tuple[str, ...], dict[str, Any]]] = {}
        self._public_notes: dict[str, tuple[str, ...]] = {}  # by what public samples depend on
        self._test_notes: dict[str, tuple[str, ...]] = {}

    def plan(self, settings: Settings) -> PlannedCell:
        dataset = self._dataset(settings)
        key = settings.model_dump_json(include=set(DATA_FIELDS))
        public = settings.model_dump_json(include={*DATA_FIELDS, *_PUBLIC_FIELDS})
        if public not in self._public_notes:
            samples = load_public(settings, self._data_root, download=self._download)
            self._public_notes[public] = samples.notes if samples else ()
        notes = dataset.notes + self._public_notes[public]
        with _naming(settings):
            if key not in self._partitions:
                self._partitions[key] = _divided(settings, dataset)
            partition_hash, remarks, record = self._partitions[key]
            notes += _check_models(settings, dataset, max(record["n_train"]))
            _check_messages(settings, dataset)
        if settings.tests:
            tests = tested(settings, settings.tests)
            if tests not in self._test_notes:
                partition = load_partition(settings, dataset)
                self._test_notes[tests] = check_tests(settings.tests, dataset, partition)
            notes += self._test_notes[tests]
        notes += _tolerance(settings, record)
        return PlannedCell(self._identities.of(settings, partition_hash), settings, notes, remarks, record)

    def _dataset(self, settings: Settings) -> Dataset:
        """The data set of a cell; one that could not be read is not tried again.

        Raises:
            UserError: it is unknown, missing or damaged.
        """
        key = json.dumps([settings.dataset, settings.dataset_options], sort_keys=True)
        if key in self._unreadable:
            raise UserError(self._unreadable[key])
        try:
            return load_dataset(settings, self._data_root, download=self._download)
        except UserError as error:
            self._unreadable[key] = str(error)
            raise


@contextlib.contextmanager
def _naming(settings: Settings) -> Iterator[None]:
    """Name the cell in a refusal."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{cell_name(settings)}: {error}") from None


def _divided(settings: Settings, dataset: Dataset) -> tuple[str, tuple[str, ...], dict[str, Any]]:
    """The hash of a cell's partition, remarks on it, and its record."""
    partition = load_partition(settings, dataset)
    cell_dataset, cell_partition = as_trained(settings, dataset, partition)
    malicious = None
    if settings.attack is not None:
        from bench.federation.attacks import malicious_clients  # here, as it takes torch

        malicious = malicious_clients(settings, cell_partition)
    record = partition_record(cell_dataset, cell_partition, malicious)
    return partition.hash, tuple(partition_remarks(record)), record


def _check_models(settings: Settings, dataset: Dataset, largest: int) -> tuple[str, ...]:
    """Refuse an augmentation, a model or a batch size that does not fit the samples; another error in one's own model
    is its cell's, with traceback. Return notes on what a file of weights lacks."""
    from bench.federation.setup import cell_spec, check_batch_size  # here, as it takes torch

    notes: list[str] = []
    if settings.augment != "none" and dataset.x.ndim != 4:
        raise UserError(
            f"`augment: {settings.augment}` needs images, and the samples have shape {dataset.shape}; leave it out"
        )
    if settings.pretrained and settings.architectures and settings.model not in settings.architectures:
        raise UserError(f"`pretrained` is for model {settings.model!r}, which `client_models` does not name")
    for name in settings.architectures or (settings.model,):
        is_main_model = name == settings.model
        options = json.dumps(settings.model_options if is_main_model else {}, sort_keys=True)
        weights = settings.pretrained if is_main_model else None
        version = versions(Path(weights)) if weights else ()
        factory = MODELS.get(name)  # a notebook may define a name again
        sizes = dataset.shape, dataset.num_classes, options
        net, drawn, ordered = _try_model(name, factory, *sizes, weights, version, settings.adapters)
        if net is None:
            continue
        spec = cell_spec(settings, name, net)
        if largest > 1:  # a client of one sample trains with frozen statistics
            check_batch_size(settings, name, spec, dataset.shape)
        if drawn:
            notes.append(
                f"pretrained {weights}: model {name!r} has {_first(drawn)}, which the file has not; drawn by seed"
            )
        if ordered:
            notes.append(
                f"pretrained {weights}: the file has {_first(ordered)} of model {name!r} under other names; its layers "
                "are taken in the file's order"
            )
    return tuple(notes)


def _first(names: tuple[str, ...]) -> str:
    return ", ".join((*names[:3], "...") if len(names) > 3 else names)


def _tolerance(settings: Settings, record: dict[str, Any]) -> tuple[str, ...]:
    """A note on what the cell's server rule tolerates."""
    if settings.server is None:
        return ()
    from bench.federation.attacks import tolerance_note  # here, as it takes torch

    stages = [record, *record.get("changes", ())]
    clients = [sum(n > 0 for n in stage["n_train"]) - settings.new_clients for stage in stages]
    note = tolerance_note(settings, clients, len(record.get("malicious", ())))
    return (note,) if note else ()


def _check_messages(settings: Settings, dataset: Dataset) -> None:
    """Refuse a channel or an attack that would change nothing of what the method sends."""
    if not settings.channel and settings.attack is None:
        return
    from bench.runs.forecast.stand_in import try_messages  # here, as it takes torch

    tests = len(dataset.y) - dataset.n_train
    try_messages(settings, DataSize(dataset.shape, dataset.num_classes, dataset.n_train, tests))


@functools.cache
def _try_model(
    name: str,
    factory: object,
    shape: tuple[int, ...],
    classes: int,
    options: str,
    weights: str | None,
    version: object,
    adapters: AdapterSettings | None,
) -> "tuple[nn.Module | None, tuple[str, ...], tuple[str, ...]]":
    """The model on the meta device, None if its author's code fails; tensors of its body that the file has not; and
    those that are matched by their order.

    `factory` and `version` tell the model's code and the file of weights from others in the cache.

    Raises:
        UserError: it does not take the samples, or the weights do not fit it.
    """
    from bench.models.factory import build
    from bench.models.pretrained import match

    try:
        net = build(name, shape, classes, json.loads(options), adapters)
    except UserError:
        raise
    except Exception:
        return None, (), ()
    if weights is None:
        return net, (), ()
    matched = match(Path(weights), net)
    return net, tuple(tensor for tensor in matched.reset if not tensor.startswith("head.")), matched.by_order


def select(cells: Sequence[Settings], only: str | Sequence[str]) -> list[Settings]:
    """The cells that `--only method=scd,seed=0` means: conditions on one setting are alternatives, and of each setting
    that is named one must hold. Several texts are all their conditions together.

    A value is text as cells have it, or what a grid file would say; `optimizer=adam` is any with that name.

    Raises:
        UserError: a condition is no `key=value`, its key is unknown, or no cell fits it, or all of them together.
    """
    texts = [only] if isinstance(only, str) else only
    fitting: dict[str, set[int]] = {}  # by setting, the positions of the cells that fit one of its conditions
    for text in texts:
        parts = [part for part in text.split(",") if part.strip()]
        while parts:
            key, length, positions = _first_condition(cells, parts)
            fitting.setdefault(key, set()).update(positions)
            parts = parts[length:]
    fits = [cell for i, cell in enumerate(cells) if all(i in positions for positions in fitting.values())]
    if not fits:
        raise _fits_none(cells, ",".join(texts))
    return fits


def _first_condition(cells: Sequence[Settings], parts: Sequence[str]) -> tuple[str, int, list[int]]:
    """Read the first condition. As names may hold commas, it reaches over as many of them as it still fits some cell.

    Args:
        cells: of which it chooses some.
        parts: what stands between commas.

    Returns:
        The setting, the number of its parts, and the positions of the cells that fit.
    """
    key, equals, _ = (piece.strip() for piece in parts[0].partition("="))
    if not equals:
        raise UserError(f"--only {key}: write key=value, for example --only method=scd,seed=0")
    keys = list(Settings.model_fields)
    if key not in keys:
        raise UserError(f"--only {parts[0].strip()}: unknown key {key!r}.{did_you_mean(key, keys)}")
    values = [_value(cell, key) for cell in cells]
    for length in range(len(parts), 0, -1):
        meant = _meant(key, ",".join(parts[:length]).partition("=")[2].strip())
        positions = [i for i, value in enumerate(values) if value in meant or _name(value) == meant[0]]
        if positions:
            return key, length, positions
    length = next((i for i, part in enumerate(parts) if i and "=" in part), len(parts))
    text = ",".join(parts[:length]).partition("=")[2].strip()
    raise _fits_none(cells, f"{key}={text}", did_you_mean(text, list(dict.fromkeys(map(str, values)))))


def _fits_none(cells: Sequence[Settings], wanted: str, hint: str = "") -> UserError:
    return UserError(
        f"--only {wanted}: none of the {len(cells)} cells fits.{hint} `--dry-run -v` without it lists them."
    )


def _meant(key: str, text: str) -> list[Any]:
    """The values that the text of a condition may mean: itself, and what a grid file would make of it."""
    try:
        document = parse(text, "--only")
        document.check()
        return [text, _value(Settings.model_validate({"method": "", key: document.data}), key)]
    except (UserError, ValidationError):
        return [text]


def _name(value: Any) -> Any:
    """The name of a value that has options, such as that of an optimizer."""
    return value.get("name") if isinstance(value, dict) else None


def _value(settings: Settings, key: str) -> Any:
    """The value of a setting as a file holds it; of `label` the name in tables."""
    return settings.name if key == "label" else settings.model_dump(mode="json", include={key})[key]


def listed(
    cells: Sequence[Settings], planned: Sequence[PlannedCell], folder: Path, data_root: Path
) -> list[PlannedCell]:
    """All cells of a grid of which `--only` chose the planned ones, as `run.json` lists them.

    The data of the others may be missing: those whose id rests on such data have that of an earlier command in this
    folder, or are left out.
    """
    chosen = {id(cell.settings): cell for cell in planned}  # as comparing the settings of thousands takes seconds
    earlier, identities, complete = _earlier_ids(folder), Identities(data_root), []
    for settings in cells:
        if (cell := chosen.get(id(settings))) is None:
            try:
                cell = PlannedCell(identities.of(settings), settings)
            except UserError:
                if not (known := earlier.get(description(settings))):
                    continue
                cell = PlannedCell(known, settings)
        complete.append(cell)
    _refuse_other_scoring(complete)
    return complete


def _earlier_ids(folder: Path) -> dict[str, str]:
    """The ids in a folder's `run.json` by the cells' settings."""
    try:
        return {description(cell.settings): cell.id for cell in load_run(folder).cells}
    except UserError:  # there is none yet, or another version's
        return {}


def planned_remarks(cells: Sequence[PlannedCell]) -> list[str]:
    """Return what is known before cells run: notes on their data, each once, then remarks on their partitions."""
    return [*data_notes(cells), *gathered((cell.settings, cell.remarks) for cell in cells)]


def data_notes(cells: Sequence[PlannedCell]) -> list[str]:
    """Return the notes on the data of cells, each once."""
    return list(dict.fromkeys(note for cell in cells for note in cell.notes))
