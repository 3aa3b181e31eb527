"""S6 of docs/scd-study.md, corrected for the number of values among which the rival was the best.

    python docs/examples/scd_maxima.py docs/scd-study/photographs

Reads `claims.csv` and `curves.csv` of `scd_study.py` and widens each interval to Bonferroni's level for the other
values of the same setting, from the printed ends.
"""

import re
import sys
from collections import Counter
from pathlib import Path

import pandas as pd
from scipy import stats

NAMES = ("tau", "lambda_g", "lambda_p")


def main(folder: Path) -> None:
    """Print what is left of the claims that were contradicted or held, and the counts."""
    claims, curves = (pd.read_csv(folder / f"{name}.csv") for name in ("claims", "curves"))
    values = curves["row"].str.extract(
        r"(?P<reading>\w+), " + ", ".join(rf"{name}=(?P<{name}>[\d.]+)" for name in NAMES)
    )
    curves = pd.concat([curves[["task", "figure"]], values], axis="columns").dropna()
    counts: Counter[tuple[str, str]] = Counter()
    for claim in claims[claims["claim"] == "S6"].itertuples():
        [name] = re.findall(r"^\w+", claim.says)
        same = (
            (curves["reading"] == claim.reading) & (curves["task"] == claim.task) & (curves["figure"] == claim.figure)
        )
        others = curves[same][name].nunique() - 1
        wider = stats.t.ppf(1 - 0.025 / others, claim.seeds - 1) / stats.t.ppf(0.975, claim.seeds - 1)
        half = (claim.high - claim.low) / 2 * wider
        verdict = "holds" if claim.difference > half else "contradicted" if claim.difference < -half else "open"
        counts[claim.verdict, verdict] += 1
        if claim.verdict != "open":
            where = f"{claim.figure}, {claim.reading}, {claim.task}"
            print(f"{claim.says} ({where}): {claim.verdict} -> {verdict}, {wider:.2f}")
    for (before, after), count in sorted(counts.items()):
        print(f"{count}: {before} -> {after}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
