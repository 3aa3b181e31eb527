"""The page of a decision, for a person, and `decision.json`, for a program."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.store import inside, store
from reports.decision.evidence import Evidence
from reports.decision.sentences import headline, points, sentences, settings_text
from reports.decision.verdict import ALONE, ConsortiumVerdict
from reports.page.data_page import data_sections
from reports.page.page import write_page
from reports.page.section import Section
from reports.pictures.canvas import COLOURS, QUIET, Picture, drawing, finish
from reports.reading.load import load
from reports.statistics.crossed import crossed_mean
from reports.tables.table import Column, Table, TableEntry, amount, number, words

FOLDER, JSON = "decision", "decision.json"
"""In the run folder."""

_INDEPENDENT = (
    "Every row counts as independent of the others: rows of one person, or windows of one recording, make intervals "
    "too narrow, and are both trained on and tested on (`subject_column`, `--subject`)."
)
_OF_SUBJECTS = (
    "Every subject counts as independent of the others, its rows do not; none is both trained on and tested on. "
    "Intervals hold for further subjects."
)
_CLAIMS = (
    "Intervals hold for further rows of the same sites and for further seeds, with the training rows and the settings "
    "as they are: other training rows, other sites and another year were not drawn.",
    "The interval of each sentence on all sites misses by itself with the stated probability; of several, one misses "
    "more often. Those of single sites hold for all sites at once.",
    "Averages are over held-out rows, so that a large site counts more. Gains are of accuracy; other scores, and "
    "errors that cost more than others, were not looked at.",
    "Seconds are of this machine and hold no time for messages. What a site gives away by its messages, and what "
    "protection against that costs in accuracy, was not looked at.",
)


@dataclass(frozen=True)
class Course:
    """Record of what was run, and on which data.

    Attributes:
        data: what `bench data` says of the data.
        kinds: by method, why it is in the portfolio.
        steps: sentences on what was run.
    """

    data: Mapping[str, Any]
    kinds: Mapping[str, str]
    steps: Sequence[str]


def write_decision(folder: Path, verdict: ConsortiumVerdict, evidence: Evidence, course: Course) -> Path:
    """Write `decision.json` and the page into a run folder; returns the path of the page."""
    store.write_json(folder / JSON, as_json(verdict, evidence, course))
    out = inside.make_folder(folder, folder / FOLDER)
    said = sentences(verdict, evidence)
    sections = [Section("verdict", headline(verdict), points=tuple(said))]
    if evidence.candidates and not verdict.reason:
        sections.append(
            Section("sites", "Gains of the sites", pictures=(_picture(verdict),), more=(_site_table(verdict),))
        )
        sections.append(
            Section("methods", "The methods", tables=(_method_table(verdict, evidence),), more=(_kind_table(course),))
        )
    independent = _INDEPENDENT if evidence.subject is None else _OF_SUBJECTS
    sections += [
        *data_sections(course.data),
        Section("course", "What was run", points=tuple(course.steps)),
        Section("limits", "What is not claimed", points=(independent, *_CLAIMS)),
    ]
    title = f"Should these sites train together? {course.data['data']}"
    summary = (
        f"Margin, in points: {verdict.margin:g}; what differs by less counts as equal. Intervals in brackets: "
        f"{100 * (1 - verdict.level):g} %."
    )
    return write_page(load([folder]), out, title, summary, sections)


def as_json(verdict: ConsortiumVerdict, evidence: Evidence, course: Course) -> dict[str, Any]:
    """All that the page says, as plain values; numbers that there are not are null."""
    judged = {
        candidate.name: {
            "settings": candidate.settings,
            "personal": candidate.personal,
            "validation": candidate.validation,
            "test": float(candidate.correct.mean()),
            "megabytes": candidate.megabytes,
            "seconds": candidate.seconds,
        }
        for candidate in evidence.candidates.values()
    }
    plain: dict[str, Any] = _plain(
        {
            "headline": headline(verdict),
            "sentences": sentences(verdict, evidence),
            "verdict": dataclasses.asdict(verdict),
            "seeds": list(evidence.seeds),
            "rows": len(evidence.site),
            "methods": judged,
            "missing": evidence.missing,
            "portfolio": dict(course.kinds),
            "run": list(course.steps),
            "data": dict(course.data),
        }
    )
    return plain


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _picture(verdict: ConsortiumVerdict) -> Picture:
    """Gains over training alone by site, with intervals; sites without tests are left out."""
    sites = [site for site in verdict.sites if not math.isnan(site.gain.low)]
    colours = {"gains": COLOURS[2], "loses": COLOURS[1], "no difference": COLOURS[0], "undecided": QUIET}
    height = 0.6 + 0.24 * max(3, len(sites) + 1)
    with drawing(["gain"], 1, panel=(6.0, height)) as (canvas, (axis,)):
        entries = [("all", verdict.average, "#000000")] if verdict.average else []
        entries += [(site.name, site.gain, colours[site.answer]) for site in sites]
        for place, (_, gain, colour) in enumerate(entries):
            ends = [[max(0.0, gain.mean - gain.low)], [max(0.0, gain.high - gain.mean)]]
            axis.errorbar(gain.mean, place, xerr=ends, color=colour, marker="o", markersize=4, elinewidth=1.4)
        axis.axvspan(-verdict.margin, verdict.margin, color="#e3e6ea", zorder=0)
        axis.axvline(0, color="#555b63", linewidth=0.8)
        axis.set_yticks(range(len(entries)), [name for name, _, _ in entries])
        axis.set_ylim(len(entries) - 0.5, -0.5)
        axis.set_xlabel(f"points that {verdict.judged} gains over training alone")
        caption = (
            f"A point is a gain, the mean over seeds, with its {100 * (1 - verdict.level):g} % interval. Green: gains; "
            "orange: loses; blue: neither; grey: undecided; the grey band is the margin."
        )
        how = (
            "Gains are differences of accuracies on the held-out rows. The intervals hold for all sites at once; that "
            "of all rows is by itself."
        )
        return finish(canvas, "gains", "Who gains from training together", caption, how)


def _site_table(verdict: ConsortiumVerdict) -> Table:
    rows = tuple(
        (
            site.name,
            (
                number(site.gain.samples, decimals=0), number(site.gain.mean, decimals=1, signed=True),
                words("–" if math.isnan(site.gain.low) else points(site.gain).partition(" points ")[2]),
                words(site.answer),
            ),
        )
        for site in verdict.sites
    )  # fmt: skip
    heads = ("held-out rows", "gain", "interval", "answer")
    caption = f"Points that `{verdict.judged}` gains over training alone; the intervals hold for all sites at once."
    return Table("gains", "Gains by site", caption, "Site", tuple(map(Column, heads)), rows)


def _method_table(verdict: ConsortiumVerdict, evidence: Evidence) -> Table:
    rows = []
    alone = evidence.candidates[ALONE]
    for name, candidate in sorted(evidence.candidates.items(), key=lambda entry: -entry[1].validation):
        gain = crossed_mean(candidate.correct - alone.correct, verdict.level, evidence.subject)
        entries: tuple[TableEntry, ...] = (
            words("personal" if candidate.personal else "single"),
            number(candidate.validation, decimals=1),
            number(float(candidate.correct.mean()), decimals=1),
            words("–" if name == ALONE else points(gain).replace(" points", "")),
            amount(candidate.megabytes),
            amount(candidate.seconds),
            words(settings_text(candidate.settings)),
        )
        rows.append((name, entries))
    heads = ("model", "validation %", "test %", "gain over alone", "MB a site", "seconds a site", "settings")
    caption = (
        "Accuracy on validation rows, by which methods and settings are chosen, and on held-out rows, by which they "
        "are judged. Gain: points over training alone, with an interval for this method by itself."
    )
    how = (
        f"Means over {len(evidence.seeds)} seeds. Of several gains the highest is flattered, and the sentences above "
        "are about the method that validation chose. MB and seconds: of all rounds, for each site."
    )
    notes = tuple(f"{name} is left out: {reason}." for name, reason in evidence.missing.items())
    return Table("methods", "The methods", caption, "Method", tuple(map(Column, heads)), tuple(rows), notes, how=how)


def _kind_table(course: Course) -> Table:
    rows = tuple((name, (words(kind),)) for name, kind in course.kinds.items())
    caption = (
        "Methods of different kinds, chosen by how different the sites are; with little time the last are left out."
    )
    return Table("kinds", "Why these methods", caption, "Method", (Column("why"),), rows)
