"""The page of a decision, for a person, and `decision.json`, for a program."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.data import Floats
from bench.metrics.classification import ece
from bench.store import inside, store
from reports.decision.evidence import Baseline, Evidence
from reports.decision.scores import SCORES
from reports.decision.sentences import headline, plain, points, sentences, settings_text
from reports.decision.verdict import ALONE, ConsortiumVerdict, mean_gain
from reports.page.data_page import data_sections
from reports.page.page import write_page
from reports.page.section import Section
from reports.pictures.canvas import COLOURS, QUIET, Picture, drawing, finish
from reports.reading.load import load
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
    "more often. Those of groups hold for all groups at once, and those of single sites for all sites.",
    "Errors that cost more than others were not looked at, and of scores only the one that decides.",
    "Seconds are of this machine and hold no time for messages. What a site gives away by its messages, and what "
    "protection against that costs, was not looked at.",
)
_PURPOSE = (
    "For classes that are told from a row of numbers. Not for regression, survival times, effects of treatments, or a "
    "model that goes into use without a study of its own."
)
_MOST_CLASSES = 12  # of a table of what a model says
_WIDEST = 4.0  # middle half widths of the intervals at which the picture's axis ends at the latest


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
        tables = _method_table(verdict, evidence), _beside_table(verdict, evidence)
        sections.append(Section("methods", "The methods", tables=tables, more=(_kind_table(course),)))
        sections += _model_section(verdict, evidence)
    independent = _INDEPENDENT if evidence.rows.subject is None else _OF_SUBJECTS
    sections += [
        *data_sections(course.data),
        Section("course", "What was run", points=tuple(course.steps)),
        Section("limits", "What is not claimed", points=(independent, *_CLAIMS)),
    ]
    title = f"Should these sites train together? {course.data['data']}"
    summary = (
        f"{_PURPOSE} Decided by {SCORES[evidence.score]}; a point is a hundredth of it. Margin, in points: "
        f"{verdict.margin:g}; what differs by less counts as equal. Intervals in brackets: "
        f"{100 * (1 - verdict.level):g} %, over {len(evidence.seeds)} seeds."
    )
    return write_page(load([folder]), out, title, summary, sections)


def as_json(verdict: ConsortiumVerdict, evidence: Evidence, course: Course) -> dict[str, Any]:
    """All that the page says, as plain values; numbers that there are not are null."""
    said = ("settings", "personal", "validation", "megabytes", "seconds")
    judged = {
        name: {key: getattr(candidate, key) for key in said} | {"test": _score(evidence, candidate.values)}
        for name, candidate in evidence.candidates.items()
    }
    plain: dict[str, Any] = _plain(
        {
            "headline": headline(verdict),
            "sentences": sentences(verdict, evidence),
            "advice": verdict.site_advice,
            "verdict": dataclasses.asdict(verdict),
            "score": evidence.score,
            "seeds": list(evidence.seeds),
            "rows": len(evidence.rows.site),
            "guess": _score(evidence, evidence.guess),
            "baselines": [
                {"name": model.name, "fitted": model.fitted, "test": _score(evidence, model.values)}
                for model in evidence.baselines
            ],
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


def _score(evidence: Evidence, values: Floats) -> float:
    """The mean score over sites that count alike, in points."""
    return float((evidence.rows.share @ values).mean()) / max(1, len(evidence.rows.scored))


def _picture(verdict: ConsortiumVerdict) -> Picture:
    """Gains over training alone of groups and sites, with intervals; sites without a score are left out."""
    sites = [site for site in verdict.sites if not math.isnan(site.gain.low)]
    colours = {"gains": COLOURS[2], "loses": COLOURS[1], "no difference": COLOURS[0], "undecided": QUIET}
    entries = [("all sites", verdict.average, "#000000")] if verdict.average else []
    if len(verdict.groups) > 1:
        entries += [(group.name, group.gain, "#000000") for group in verdict.groups if len(group.sites) > 1]
    entries += [(site.name, site.gain, colours[site.answer]) for site in sites]
    widths = sorted(gain.high - gain.low for _, gain, _ in entries)
    end = 1.05 * max(
        _WIDEST * widths[len(widths) // 2] / 2, verdict.margin, *(abs(gain.mean) for _, gain, _ in entries)
    )
    with drawing(["gain"], 1, panel=(6.0, 0.6 + 0.24 * max(3, len(entries)))) as (canvas, (axis,)):
        for place, (_, gain, colour) in enumerate(entries):
            axis.plot((gain.low, gain.high), (place, place), color=colour, linewidth=1.4)
            axis.plot(gain.mean, place, "o", color=colour, markersize=4)
        axis.axvspan(-verdict.margin, verdict.margin, color="#e3e6ea", zorder=0)
        axis.axvline(0, color="#555b63", linewidth=0.8)
        axis.set_yticks(range(len(entries)), [name for name, _, _ in entries])
        axis.set(xlim=(-end, end), ylim=(len(entries) - 0.5, -0.5))
        axis.set_xlabel(f"points that {verdict.judged} gains over training alone")
        caption = (
            f"A point is a gain, the mean over seeds, with its {100 * (1 - verdict.level):g} % interval. Black: means "
            "over sites; green: gains; orange: loses; blue: neither; grey: undecided; the grey band is the margin. An "
            "interval that touches the edge goes further, as the table says."
        )
        how = (
            "Gains are differences of scores on the held-out rows. The intervals of sites hold for all sites at once, "
            "those in black together, too."
        )
        return finish(canvas, "gains", "Who gains from training together", caption, how)


def _site_table(verdict: ConsortiumVerdict) -> Table:
    rows = tuple(
        (
            site.name,
            (
                number(site.gain.samples, decimals=0), number(site.gain.mean, decimals=1, signed=True),
                words("–" if math.isnan(site.gain.low) else points(site.gain).partition(" points ")[2]),
                words(f"{site.answer}, too few {site.short}" if site.short else site.answer),
            ),
        )
        for site in verdict.sites
    )  # fmt: skip
    heads = ("held-out rows", "gain", "interval", "answer")
    caption = f"Points that `{verdict.judged}` gains over training alone; the intervals hold for all sites at once."
    return Table("gains", "Gains by site", caption, "Site", tuple(map(Column, heads)), rows)


def _method_table(verdict: ConsortiumVerdict, evidence: Evidence) -> Table:
    rows = []
    for name, candidate in sorted(evidence.candidates.items(), key=lambda entry: -entry[1].validation):
        entries: tuple[TableEntry, ...] = (
            words("personal" if candidate.personal else "single"),
            number(candidate.validation, decimals=1),
            number(_score(evidence, candidate.values), decimals=1),
            words("–" if name == ALONE else _over_alone(candidate.values, verdict, evidence)),
            amount(candidate.megabytes),
            amount(candidate.seconds),
            words(settings_text(candidate.settings)),
        )
        rows.append((name, entries))
    heads = ("model", "validation", "held out", "gain over alone", "MB a site", "seconds a site", "settings")
    caption = (
        "Scores in points, the mean over sites: on validation rows, by which methods are chosen, and on held-out rows, "
        "by which they are judged. Gain: over training alone, with an interval for this method by itself."
    )
    how = (
        f"Means over {len(evidence.seeds)} seeds. Of several gains the highest is flattered, and the sentences above "
        "are about the method that validation chose. MB and seconds: of all rounds, for each site."
    )
    notes = tuple(f"{name} is left out: {reason}." for name, reason in evidence.missing.items())
    return Table("methods", "The methods", caption, "Method", tuple(map(Column, heads)), tuple(rows), notes, how=how)


def _over_alone(values: Floats, verdict: ConsortiumVerdict, evidence: Evidence) -> str:
    gain = mean_gain(evidence, values, ALONE, verdict.level, evidence.rows.scored)
    return points(gain).replace(" points", "")


def _beside_table(verdict: ConsortiumVerdict, evidence: Evidence) -> Table:
    """Models that a decision compares with: the most frequent class for all rows, and models from outside."""
    guess = Baseline("always what is most frequent", "each site by itself", evidence.guess)
    rows = tuple(
        (
            model.name,
            (
                words(model.fitted),
                number(_score(evidence, model.values), decimals=1),
                words(_over_alone(model.values, verdict, evidence)),
            ),
        )
        for model in (guess, *evidence.baselines)
    )
    heads = ("fitted", "held out", "gain over alone")
    labels = evidence.rows.labels
    share = 100 * np.bincount(labels).max() / len(labels)
    frequent = evidence.classes[int(np.bincount(labels).argmax())]
    caption = f"Scores in points, the mean over sites. Of all held-out rows {share:.1f} % are {frequent!r}."
    return Table("beside", "To compare with", caption, "Model", tuple(map(Column, heads)), rows)


def _model_section(verdict: ConsortiumVerdict, evidence: Evidence) -> list[Section]:
    """The answers of the recommended or judged model for rows of each class, and how far they can be believed."""
    name = verdict.method or verdict.judged
    probabilities = evidence.candidates[name].probabilities
    labels, classes = evidence.rows.labels, evidence.classes
    if probabilities is None or len(classes) > _MOST_CLASSES:
        return []
    said = probabilities.argmax(axis=2)
    rows = []
    for label, text in enumerate(classes):
        here = said[labels == label]
        counts = [float((here == other).sum()) / len(evidence.seeds) for other in range(len(classes))]
        rows.append((text, tuple(number(count, decimals=1) for count in counts)))
    with np.errstate(divide="ignore"):
        logits = np.maximum(np.log(probabilities), -700.0)
    error = np.mean([ece(labels, logits[:, seed]) for seed in range(len(evidence.seeds))])
    caption = (
        f"Held-out rows of each class (a line) by what `{name}` says (a column), the mean over seeds. Its confidence "
        f"differs from the share that is right by {100 * error:.1f} points on average (expected calibration error)."
    )
    table = Table("confusion", "What it says", caption, "Class", tuple(map(Column, classes)), tuple(rows))
    return [Section("model", f"The model: {plain(name)}", tables=(table,))]


def _kind_table(course: Course) -> Table:
    rows = tuple((name, (words(kind),)) for name, kind in course.kinds.items())
    caption = (
        "Methods of different kinds, chosen by how different the sites are; with little time the last are left out."
    )
    return Table("kinds", "Why these methods", caption, "Method", (Column("why"),), rows)
