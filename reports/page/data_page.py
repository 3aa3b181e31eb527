"""The page of data before any training: sites, sizes, classes, gaps, how different the sites are, and what to mend.

Its parts are made of what `bench.results.data_description.describe` says, so another page may have them, too.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.store import inside
from reports.page.section import Section, rendered
from reports.pictures.canvas import COLOURS, Picture, drawing, finish, legend
from reports.tables.table import Column, Table, TableEntry, number, sentence

Description = Mapping[str, Any]
"""The values of `bench.results.data_description.describe`, or of `bench data --json`."""

_MOST_CLASSES = 6  # of which each has a column and a colour
_MOST_NAMES = 40  # sites whose names stand in a picture
_SITE = 0.22  # inches of a site's bar


def write_data_page(file: Path, described: Sequence[Description]) -> None:
    """Write the page of one or several divisions of data as one HTML file.

    Raises:
        OSError: the file cannot be written.
    """
    several = len(described) > 1
    sections = []
    for place, entry in enumerate(described):
        for section in data_sections(entry):
            named = replace(section, title=f"{section.title}: {entry['data']}").named(f"_{place}")
            sections.append(named if several else section)
    title = described[0]["data"] if not several else f"{len(described)} divisions of data"
    file.parent.mkdir(parents=True, exist_ok=True)
    inside.replace(file, rendered(title, "" if several else summary(described[0]), sections).encode(), durable=False)


def summary(described: Description) -> str:
    """Sizes of the data in a sentence."""
    sites = described["sites"]
    counts = {part: sum(site[part] for site in sites) for part in ("train", "validation", "test")}
    features = f", {len(described['features'])} features" if described["features"] else ""
    return (
        f"{sum(counts.values())} samples of {len(sites)} sites ({counts['train']} for training, {counts['validation']} "
        f"for validation, {counts['test']} for tests), {len(described['classes'])} classes{features}. Nothing has been "
        "trained yet."
    )


def data_sections(described: Description) -> list[Section]:
    """The parts of a page that say what data are like: what to know, the sites, the features.

    Args:
        described: of one division of data.
    """
    remarks = tuple(map(sentence, described["remarks"]))
    known = Section("findings", "What to know", "" if remarks else "Nothing stands out.", points=remarks)
    sites = Section("sites", "Sites", tables=(_sites_table(described),), pictures=(_sizes(described),))
    parts = [known, sites]
    if described["features"]:
        parts.append(Section("features", "Features", tables=(_features_table(described),)))
    return parts


def _sites_table(described: Description) -> Table:
    classes, sites = described["classes"], described["sites"]
    listed = len(classes) <= _MOST_CLASSES
    heads = [
        *(Column(name, "samples") for name in ("train", "validation", "test", "± points")),
        Column("label distance", "difference"),
        Column("feature score", "difference"),
        Column("missing %", "gaps"),
        *([Column(str(name), "training samples by class") for name in classes] if listed else [Column("classes", "")]),
    ]
    rows = []
    for site in sites:
        coarse = site["train"] and not _known(site["within"]) <= described["coarse"]
        within = number(_known(site["within"]), decimals=1)
        entries = [
            *(number(site[part], decimals=0) for part in ("train", "validation", "test")),
            TableEntry(within.value, note="too small" if coarse else "", decimals=1),
            number(_known(site["label_distance"])),
            number(_known(site["feature_score"])),
            number(100 * _known(site["missing"]), decimals=1),
        ]
        held = site["classes"] if listed else [sum(count > 0 for count in site["classes"])]
        rows.append((str(site["name"]), (*entries, *(number(count, decimals=0) for count in held))))
    caption = (
        "± points: how precisely the site's test samples measure an accuracy of 50 % (95 % interval); above "
        f"{described['coarse']:g} a site is too small to test. A dash: too few samples to say."
    )
    how = (
        "Both are of training samples. Label distance: the total variation between the shares of classes at a site and "
        "at all others; 0: the same shares, 1: no class in common. Feature score: how well a linear model tells a "
        "site's inputs from the others' (area under the ROC curve); 0.5: not at all, 1: always."
    )
    return Table("site_table", "Sites", caption, "Site", tuple(heads), tuple(rows), how=how)


def _sizes(described: Description) -> Picture:
    """Draw the training samples of each site, by class where there are few."""
    sites, classes = described["sites"], described["classes"]
    few = len(classes) <= _MOST_CLASSES
    shown = min(len(sites), _MOST_NAMES)
    with drawing(["samples"], 1, (6.0, 0.7 + _SITE * max(shown, 3)), share=False) as (canvas, (axis,)):
        places = range(len(sites))
        if few:
            left = [0] * len(sites)
            for k in range(len(classes)):
                counts = [site["classes"][k] for site in sites]
                axis.barh(places, counts, left=left, color=COLOURS[k])
                left = [a + b for a, b in zip(left, counts, strict=True)]
            lines = {str(name): {"color": COLOURS[k], "linewidth": 6} for k, name in enumerate(classes)}
            legend(canvas, lines)
        else:
            axis.barh(places, [site["train"] for site in sites], color=COLOURS[0])
        _name_sites(axis, sites)
        axis.set(xlabel="training samples")
        by_class = " by class" if few else ""
        return finish(canvas, "sizes", "Sizes", f"Training samples of each site{by_class}.")


def _name_sites(axis: Any, sites: Sequence[Mapping[str, Any]]) -> None:
    axis.invert_yaxis()
    axis.grid(visible=False, axis="y")
    if len(sites) <= _MOST_NAMES:
        axis.set_yticks(range(len(sites)), [str(site["name"]) for site in sites])
    else:
        axis.set(ylabel="site, in the order of the table")


def _features_table(described: Description) -> Table:
    rows = tuple(
        (str(name), (number(100 * share, decimals=1),))
        for name, share in zip(described["features"], described["missing"], strict=True)
    )
    caption = (
        "The inputs that a network gets for a row: its numbers, a channel of 0 and 1 for each category, and one that "
        "marks missing numbers."
    )
    return Table("feature_table", "Features", caption, "Channel", (Column("rows without it (%)"),), rows)


def _known(value: float | None) -> float:
    return math.nan if value is None else value
