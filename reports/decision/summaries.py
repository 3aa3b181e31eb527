"""Summaries of several sites, read before anything is shared: how different the sites are, and which could gain."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.errors import UserError
from bench.places import check_folder
from bench.results.site_summary import PURPOSE
from bench.store.documents import read_json

ROWS_EACH = 10
"""Rows of the rarest class for each column, below which a site's own model is poorly determined (Peduzzi et al. 1996,
"A simulation study of the number of events per variable in logistic regression analysis")."""
_SURE = 3.0  # standard errors from which a difference is told


def read_summaries(folder: Path) -> dict[str, dict[str, Any]]:
    """Read the summaries of a folder, by the names of their files.

    Raises:
        UserError: there are fewer than two, one is none, or they are of different bounds.
    """
    files = sorted(check_folder(folder, "folder of summaries").glob("*.json"))
    summaries = {}
    for file in files:
        content = read_json(file)
        if not isinstance(content, dict) or (content.get("about") or {}).get("purpose") != PURPOSE:
            raise UserError(f"{file} is no summary of `bench data --summary`; take it out of the folder")
        summaries[file.stem] = content
    if len(summaries) < 2:
        raise UserError(
            f"{folder} has {len(summaries)} summaries (*.json); there should be one for each of two sites or more"
        )
    first, *others = summaries
    for other in others:
        if _bounds(summaries[first]) != _bounds(summaries[other]):
            raise UserError(
                f"{folder}: {first} and {other} have other columns or bounds; all sites should take the same file"
            )
    return summaries


def compare(summaries: Mapping[str, Mapping[str, Any]]) -> tuple[list[list[str]], list[str]]:
    """Compare sites.

    Returns:
        The lines of a table, of which the first has the heads; and sentences.
    """
    table = [["site", "rows", "label", "label distance", "differs most in"]]
    differing, gaining, unclear = [], [], []
    for name, summary in summaries.items():
        others = [other for site, other in summaries.items() if site != name]
        distance, error = _label_distance(summary, others)
        column, apart, sure = _farthest(summary, others)
        shares = " ".join(f"{label} {share}" for label, share in _label(summary)["shares"].items() if share)
        most = f"{column} ({apart:+.1f} deviations{'' if sure else ', within noise'})" if column else "-"
        table.append([name, str(summary["rows"]), shares, f"{distance:.2f} ± {error:.2f}", most])
        if sure or distance > _SURE * error:
            differing.append(f"{name} ({most if sure else 'shares of classes'})")
        rarest = min(
            (share or 0.0) for label, share in _label(summary)["shares"].items() if label != "others or missing"
        )
        events, wanted = rarest * summary["rows"], ROWS_EACH * max(1, len(summary["columns"]))
        if _SURE * math.sqrt(2) * _label(summary)["noise of a count"] > wanted / 2:
            unclear.append(name)
        elif events < wanted:
            gaining.append(name)
    return table, [
        f"Different beyond noise: {', '.join(differing) or 'no site'}. A mean that is far off may be another unit.",
        f"Could gain, as their rarest class has fewer than {ROWS_EACH} rows for each column (a rule of thumb for a "
        f"model by itself): {', '.join(gaining) or 'no site'}.",
        *([f"Too noisy to say whether they could gain: {', '.join(unclear)}."] if unclear else []),
        "Not known without training: whether the same values mean the same outcome at all sites, and so whether "
        "anybody gains, how much, and by which method. Nor how columns go together, whether persons are at several "
        "sites, and what columns without bounds hold.",
    ]


def _label(summary: Mapping[str, Any]) -> dict[str, Any]:
    (entry,) = summary["label"].values()
    return dict(entry)


def _bounds(summary: Mapping[str, Any]) -> list[Any]:
    entries = {**summary["label"], **summary["columns"]}
    return [(name, entry.get("range") or sorted(entry["shares"])) for name, entry in entries.items()]


def _label_distance(summary: Mapping[str, Any], others: list[Mapping[str, Any]]) -> tuple[float, float]:
    """Total variation between the shares of classes here and at the others, and a standard error by noise and rows."""
    pooled = sum(other["rows"] for other in others)
    here, classes = max(1, summary["rows"]), _label(summary)["shares"]
    there = {
        label: sum(o["rows"] * (_label(o)["shares"][label] or 0) for o in others) / max(1, pooled) for label in classes
    }
    distance = sum(abs((share or 0) - there[label]) for label, share in classes.items()) / 2
    noise = math.sqrt(2) * _label(summary)["noise of a count"] / here
    return distance, math.sqrt(len(classes) * (noise**2 + 0.25 / here + 0.25 / max(1, pooled))) / 2


def _farthest(summary: Mapping[str, Any], others: list[Mapping[str, Any]]) -> tuple[str, float, bool]:
    """The number whose mean is farthest from the others', by how many of their deviations, and whether that is sure."""
    best = ("", 0.0, False)
    for column, entry in summary["columns"].items():
        known = [(o["rows"], o["columns"][column]) for o in others if o["columns"][column].get("mean") is not None]
        here = [(summary["rows"], entry), *known]
        spreads = [(count, other["deviation"]) for count, other in here if other.get("deviation")]
        rows, told = sum(count for count, _ in known), sum(count for count, _ in spreads)
        if entry.get("mean") is None or not rows or not told:
            continue
        mean = sum(count * other["mean"] for count, other in known) / rows
        spread = math.sqrt(sum(count * deviation**2 for count, deviation in spreads) / told)
        noise = [entry["noise of the mean"], *(count / rows * other["noise of the mean"] for count, other in known)]
        sampling = (entry["deviation"] or spread) / math.sqrt(max(1, summary["rows"]))
        error = math.sqrt(2 * sum(scale**2 for scale in noise) + sampling**2 + spread**2 / rows)
        apart = entry["mean"] - mean
        if abs(apart) / spread > abs(best[1]):
            best = (column, apart / spread, abs(apart) > _SURE * error)
    return best
