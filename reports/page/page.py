"""The report of one or several runs: one HTML page that needs nothing else, and its tables and figures as files."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from bench.citations import cite
from bench.errors import UserError
from bench.results.remarks import run_remarks
from bench.runs.progress import steps
from bench.store import inside
from reports.page import client_relations
from reports.page.cells import cells_section
from reports.page.changes import change_section
from reports.page.first_screen import answers
from reports.page.further_tests import TRIGGERED, further_section, further_tests
from reports.page.section import Section, rendered
from reports.pictures import figures, new_clients, timeline
from reports.pictures.canvas import Picture
from reports.pictures.cases import heat_maps
from reports.pictures.headline import headline
from reports.pictures.profiles import performance_profiles
from reports.pictures.tradeoff import tradeoff
from reports.pictures.trends import sensitivity, trends
from reports.published import speedup
from reports.published.comparison import PublishedTable, comparison, published_table
from reports.published.measures import MEASURES
from reports.reading.load import BENIGN, HEADLINE, PM_EQUAL, Store, load
from reports.statistics.best import MARGIN
from reports.tables import accuracy, cost, fairness, scores
from reports.tables.accuracy import described
from reports.tables.cases import effect_table
from reports.tables.latex import Latex, arranged, check, display_names
from reports.tables.pool_error import pool_table
from reports.tables.standings import standings_table
from reports.tables.table import Table, to_csv, to_latex, to_markdown


def write_report(
    runs: list[Path],
    out: Path | None = None,
    extra: Sequence[Section] = (),
    *,
    selection: str | None = None,
    targets: Mapping[str, float] | None = None,
    tuned: Sequence[str] = (),
    latex: Latex | None = None,
    margin: float = MARGIN,
) -> Path:
    """Write the report of the runs, merged, and return the path of its `index.html`.

    Beside it stand `main.md`, `main.csv`, `main.tex`, `citations.bib`, `tables/` with every other table in the same
    three formats, and `figures/` with each picture as PNG and SVG. The same runs give the same bytes.

    Args:
        runs: run folders.
        out: where to write; default: `report` in the first run.
        selection: which round is reported (`Store.choice`).
        targets: target accuracy in percent by task, from `cost.read_targets`.
        tuned: what a study tuned for, `gm`, `pm` or both: the main table marks these alone; empty: all.
        extra: parts that stand before all others.
        latex: how `main.tex` is arranged.
        margin: of equivalence, in percentage points.

    Raises:
        UserError: a folder is not a run, no cell of it is done, or `latex` leaves no task.
    """
    folder = out or runs[0] / "report"
    for place in (folder, folder / "tables", folder / "figures"):
        inside.check_place(folder if out else runs[0], place)
    with steps("bench report") as step:
        step("reading the cells")
        store = replace(load(runs), margin=margin, choice=selection or "")
        if store.figures.empty:
            counts = _counts(store) or "no cells"
            again = "The same `bench run` goes on where it stopped."
            raise UserError(f"{runs[0]}: no cell is done yet ({counts}). {again}")
        options = replace(latex or Latex(), names=display_names(store))
        check(options, store.tasks)
        sections = [*extra, *_protocol_sections(store, targets or {}, tuned, step), cells_section(store)]
        title = " + ".join(dict.fromkeys(str(run["grid"]) for run in store.runs))
        remarks = run_remarks([cell.view for cell in store.cells])
        step("writing the files")
        page = write_page(store, folder, title, _summary(store), sections, remarks)
        for table in (table for section in sections for table in section.tables if table.id.startswith("main")):
            _write(page.with_name(f"{table.id}.tex"), to_latex(arranged(table, options)).encode())
    return page


def write_page(
    store: Store, out: Path, title: str, summary: str, sections: Sequence[Section], remarks: Sequence[str] = ()
) -> Path:
    """Write a page of sections, and each table and figure as files beside it; returns the path of `index.html`.

    It ends in where each of the store's runs comes from, and in what to cite, which is also written as `citations.bib`.
    """
    citation = cite(cells=[cell.view.settings for cell in store.cells])
    for name in ("figures", "tables"):
        inside.make_folder(out, out / name)
    _write_files(out, [part for section in sections for part in section.all()])
    page = rendered(title, summary, sections, remarks, [_provenance(run) for run in store.runs], citation)
    _write(out / "citations.bib", citation.bibtex.encode())
    _write(out / "index.html", page.encode())
    return out / "index.html"


def _write_files(out: Path, sections: Sequence[Section]) -> None:
    """Write tables and pictures, and remove those of an earlier report that are no longer made."""
    files: dict[Path, bytes] = {}
    for section in sections:
        for table in (*section.tables, *section.more):
            folder = out if table.id.startswith("main") else out / "tables"
            files |= {folder / f"{table.id}.{ending}": text.encode() for ending, text in _texts(table).items()}
        for picture in section.pictures:
            files |= {
                out / "figures" / f"{picture.name}.{ending}": getattr(picture, ending) for ending in ("svg", "png")
            }
    for old in (*out.glob("main*.*"), *(out / "tables").iterdir(), *(out / "figures").iterdir()):
        if old not in files and (old.is_symlink() or not old.is_dir()):
            old.unlink()
    for path, content in files.items():
        _write(path, content)


def _protocol_sections(
    store: Store, targets: Mapping[str, float], tuned: Sequence[str], step: Callable[[str], None]
) -> Iterator[Section]:
    """Make all sections that compare cells, for each protocol by itself."""
    done = [protocol for protocol in store.protocols if len(store.of_protocol(protocol).figures)]
    for position, protocol in enumerate(done):
        part = store.of_protocol(protocol)
        compared = _Compared(part, targets, tuned)
        for count, (name, section_of) in enumerate(_SECTIONS.items(), start=1 + position * len(_SECTIONS)):
            step(f"section {count} of {len(done) * len(_SECTIONS)}: {name}")
            if (section := section_of(compared)) is not None:
                title = section.title if len(done) == 1 else f"{section.title} (protocol {protocol})"
                yield replace(section, title=title).named("" if position == 0 else f"_{protocol}")


@dataclass(frozen=True)
class _Compared:
    """Material of the sections: the cells of one protocol, the caller's choices, and tables that several sections read.

    Attributes:
        store: the cells.
        targets, tuned: arguments of `write_report`.
    """

    store: Store
    targets: Mapping[str, float]
    tuned: Sequence[str]

    @cached_property
    def success(self) -> dict[tuple[str, str, str], dict[str, float]]:
        """Success of backdoors in percent by unit, of each row, task and metric."""
        tested = further_tests(self.store)
        groups: Any = tested[tested["test"] == TRIGGERED].groupby(["row", "task", "metric"])
        return {key: dict(zip(of["unit"], of["value"], strict=True)) for key, of in groups}

    @cached_property
    def printed(self) -> list[PublishedTable]:
        """The papers' tables that the grids name."""
        names = (name for run in self.store.runs for name in re.findall(r"\w+", run.get("published") or ""))
        return [published_table(name) for name in dict.fromkeys(names)]


def _section(
    id: str, title: str, tables: Iterable[Table | None] = (), pictures: Iterable[Picture | None] = ()
) -> Section | None:
    """A section of those tables and pictures that there are; None where there are none."""
    shown = tuple(table for table in tables if table is not None)
    drawn = tuple(picture for picture in pictures if picture is not None)
    return Section(id, title, tables=shown, pictures=drawn) if shown or drawn else None


def _headline_section(part: _Compared) -> Section:
    store = part.store
    pictures = heat_maps(store, part.success) if store.cases else filter(None, [headline(store)])
    points = answers(store, part.tuned)
    return Section("headline", "At a glance", pictures=(*pictures, *trends(store, part.success)), points=points)


def _accuracy_section(part: _Compared) -> Section:
    store, tuned = part.store, part.tuned
    equal = "Personalized models, every client counting the same"
    benign: tuple[Table, ...] = ()
    attacked = set(store.figures["task"][store.figures["mean"] == "benign"])
    if attacked:
        title, tasks = "Benign clients under attack", [task for task in store.tasks if task in attacked]
        benign = (accuracy.main_table(store, BENIGN, "benign", title, tuned, tasks),)
    changes = (effect_table(store),) if store.cases else ()
    return Section(
        "accuracy",
        "Accuracy",
        tables=(accuracy.main_table(store, tuned=tuned), *changes, *benign),
        more=(
            cost.budget_table(store),
            accuracy.main_table(
                replace(store, choice="last"), name="last", title="The same at the last round", tuned=tuned
            ),
            accuracy.main_table(store, (PM_EQUAL,), "equal", equal, tuned),
            accuracy.all_figures_table(store),
        ),
    )


def _convergence_section(part: _Compared) -> Section | None:
    curves = cost.curves(part.store)
    pictures = [figures.convergence(part.store, curves)] if any(map(len, curves.values())) else []
    return _section("convergence", "Convergence", pictures=pictures)


def _statistics_section(part: _Compared) -> Section:
    """Comparisons of methods; with cases within each, and over all tasks of a case where there are several."""
    store = part.store
    if store.cases:
        several = len({cell.base for cell in store.cells}) > 1
        inner = enumerate(store.cases.items() if several else ())
        parts = [
            replace(_statistics_section(replace(part, store=of)), title=case).named(f"_case{k}")
            for k, (case, of) in inner
        ]
        standings = standings_table(store, HEADLINE)
        compared = any(entry.value is not None for _, entries in standings.rows for entry in entries)
        tables = (*([standings] if compared else []), accuracy.comparison_table(store))
        return Section("statistics", "Statistics", tables=tables, parts=tuple(parts))
    pictures = [*filter(None, [performance_profiles(store)])]
    reasons: dict[str, list[str]] = {}
    for figure in HEADLINE:
        result = accuracy.ranking(store, figure)
        if result.too_few:
            reasons.setdefault(result.too_few, []).append(figure.name)
        else:
            pictures.append(figures.critical_difference(result, figure))
    aggregates = accuracy.aggregate_table(store)
    by_samples = pool_table(store, HEADLINE)
    return Section(
        "statistics",
        "Statistics",
        " ".join(f"{' and '.join(names)}: {reason}." for reason, names in reasons.items()),
        (standings_table(store, HEADLINE), *([aggregates] if aggregates.rows else [])),
        tuple(pictures),
        (accuracy.comparison_table(store), *([by_samples] if by_samples else [])),
    )


def _client_section(part: _Compared) -> Section | None:
    store, clients = part.store, fairness.client_accuracies(part.store)
    if not len(clients):
        return None
    gains = fairness.gains(clients, store)
    pictures = [figures.distribution(store, clients)]
    text = "" if len(gains) else "The grid has no `local`: who gains from joining cannot be said."
    if len(gains):
        pictures.append(figures.gain_by_size(store, gains))
    return Section("clients", "Clients", text, (fairness.fairness_table(store, clients),), tuple(pictures))


def _cost_section(part: _Compared) -> Section | None:
    store, curve = part.store, cost.curves(part.store)["PM"]
    if not len(curve):
        return None
    plain = store.cases.get(store.reference_case, store)
    pictures = [tradeoff(plain)] if len(store.rows) > 1 else []
    spent = [x for x in ("megabytes", "seconds") if (cost.totals(store)[x] > 0).any()]
    pictures += [figures.convergence(store, cost.curves(store), x) for x in spent]
    goals = cost.targets(curve, accuracy.reference(store), part.targets)
    tables = [cost.cost_table(store, curve, goals), speedup.speedup_table(store, curve, part.printed, goals)]
    return _section("cost", "Cost", tables, pictures)


def _newcomer_section(part: _Compared) -> Section | None:
    accuracies = new_clients.newcomers(part.store)
    if not len(accuracies):
        return None
    table, bars = new_clients.newcomer_table(part.store, accuracies), new_clients.newcomer_bars(part.store, accuracies)
    return Section("newcomers", "New clients", tables=(table,), pictures=(bars,))


_SECTIONS: dict[str, Callable[[_Compared], Section | None]] = {
    "at a glance": _headline_section,
    "accuracy": _accuracy_section,
    "other scores": lambda part: _section("scores", "Other scores", scores.score_tables(part.store)),
    "further tests": lambda part: further_section(part.store),
    "changes of the data": lambda part: change_section(part.store),
    "beside the paper": lambda part: _section(
        "published",
        "Beside the paper",
        (comparison(part.store, table) for table in part.printed if set(table.metrics) & set(MEASURES)),
    ),
    "convergence": _convergence_section,
    "statistics": lambda part: _statistics_section(part) if len(part.store.rows) > 1 else None,
    "clients": _client_section,
    "cost": _cost_section,
    "time": lambda part: _section("timeline", "Time", pictures=[timeline.timelines(part.store)]),
    "relations": lambda part: client_relations.relations(part.store),
    "new clients": _newcomer_section,
    "sensitivity": lambda part: _section("sensitivity", "Sensitivity", pictures=sensitivity(part.store)),
    "data": lambda part: _section(
        "data", "Data", pictures=[figures.partitions(part.store), *figures.samples(part.store)]
    ),
}
"""The page's parts from the cells of one protocol, in their order."""


def _summary(store: Store) -> str:
    seconds = sum((cell.json("timing") or {}).get("seconds", 0.0) for cell in store.cells)
    tasks = len({cell.base for cell in store.cells}) if store.cases else len(store.tasks)
    cases = f" in {len(store.cases)} cases" if store.cases else ""
    counts = (
        f"{_number(len(store.rows), 'method')}, {_number(tasks, 'task')}{cases}, {_number(len(store.cells), 'cell')}"
    )
    return (
        f"{described(store)}. {counts} ({_counts(store)}); protocol {' and '.join(store.protocols)}; "
        f"{seconds / 60:.1f} minutes of computing, all cells added up."
    )


def _number(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def _counts(store: Store) -> str:
    states = Counter(cell.state for cell in store.cells)
    return ", ".join(f"{count} {state}" for state, count in states.most_common())


def _provenance(run: dict[str, Any]) -> list[tuple[str, str]]:
    """Origin of a run as lines of text, from its `run.json`."""
    shown = {name: value for name, value in run.items() if name not in ("cells", "history") and value is not None}
    history = [f"{entry['time']}  {entry['command']}" for entry in run.get("history", [])]
    lines = {**shown, **({"all commands": "\n".join(history)} if len(history) > 1 else {})}
    return [
        (name, value if isinstance(value, str) else yaml.safe_dump(value, sort_keys=False, allow_unicode=True).strip())
        for name, value in lines.items()
    ]


def _texts(table: Table) -> dict[str, str]:
    return {"md": to_markdown(table), "csv": to_csv(table), "tex": to_latex(table)}


def _write(path: Path, content: bytes) -> None:
    """Replace a file as a whole."""
    inside.replace(path, content, durable=False)
