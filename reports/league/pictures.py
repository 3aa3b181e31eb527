"""Pictures of the league's page: the ranks with their intervals, and every method on every task."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from reports.league.rule import positions
from reports.pictures.canvas import COLOURS, UPRIGHT, Picture, colour_bar, drawing, finish, inches, legend
from reports.reading.load import Figure, Store
from reports.statistics.ranking import Ranked

_SHOWN = 15.0  # points below the best of a task at which the heat map's colour ends


def means(store: Store, rows: Sequence[str], figure: Figure) -> pd.DataFrame:
    """Mean accuracy in percent, rows x tasks; nan where there is none."""
    return pd.DataFrame([store.units(row, figure).mean() for row in rows], index=list(rows), columns=store.tasks)


def rank_picture(places: Mapping[str, Ranked], figure: Figure) -> Picture:
    """Rank intervals and ranks by mean, the best above; a tier's methods have one colour.

    Args:
        places: the rows that have a rank.
    """
    order = sorted(places, key=lambda row: (-places[row].mean, row))
    ranks = positions(places)
    tiers = sorted({place.tier for place in places.values()})
    lines: dict[str, Any] = {
        f"tier {tier}": {"color": COLOURS[k % len(COLOURS)], "linewidth": 3} for k, tier in enumerate(tiers)
    }
    with drawing([""], 1, (5.4, 0.9 + 0.16 * len(order)), share=False) as (canvas, axes):
        for at, row in enumerate(order):
            place = places[row]
            axes[0].plot(
                [place.first - 0.3, place.last + 0.3], [at, at], solid_capstyle="butt", **lines[f"tier {place.tier}"]
            )
            axes[0].plot(ranks[row], at, "o", color="black", markersize=3)
        axes[0].set_yticks(range(len(order)), order, fontsize=7)
        axes[0].set(xlabel="rank (1 is best)", xlim=(0.5, len(order) + 0.5), ylim=(len(order) - 0.4, -0.6))
        legend(canvas, lines)
        caption = (
            f"{figure.text}: intervals that hold all true ranks at once with 95 % probability, and a point for "
            "the rank by the mean over tasks; methods whose intervals overlap that of a tier's first are one tier."
        )
        return finish(canvas, f"ranks_{figure.name.lower()}", f"{figure.name}: ranks", caption)


def heat_map(accuracies: pd.DataFrame, figure: Figure) -> Picture:
    """Heat map of the points below the best of each task.

    Args:
        accuracies: from `means`, methods in the order of their ranks.
    """
    below = accuracies.max() - accuracies
    heads = min(UPRIGHT, max(map(inches, accuracies.columns)))
    size = (2.2 + 0.55 * accuracies.shape[1], 1.2 + 2 * heads + 0.19 * accuracies.shape[0])
    with drawing([""], 1, size, share=False) as (canvas, axes):
        image = axes[0].imshow(below, aspect="auto", cmap="viridis_r", vmin=0, vmax=_SHOWN)
        axes[0].set_xticks(range(accuracies.shape[1]), accuracies.columns, rotation=90)
        axes[0].tick_params(axis="x", top=True, labeltop=True, rotation=90)  # the map is long: names at both ends
        axes[0].set_yticks(range(accuracies.shape[0]), accuracies.index, fontsize=7)
        axes[0].grid(visible=False)
        colour_bar(canvas, image, axes, "points below the best")
        caption = (
            f"{figure.text}: percentage points below the best method of each task, the darkest for {_SHOWN:g} or more; "
            "the ranking's order from above."
        )
        return finish(canvas, f"heat_{figure.name.lower()}", f"{figure.name}: method x task", caption)
