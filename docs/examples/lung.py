"""Write `lung.csv`: patients with advanced lung cancer at 18 institutions, and whether they lived for another year.

The data are the trial of the North Central Cancer Treatment Group (Loprinzi et al. 1994, Journal of Clinical Oncology
12(3):601-607), as the package lifelines (MIT licence) has them: `pip install --no-deps lifelines==0.30.3`. Patients who
were followed for less than a year and had not died say nothing about it and are left out, and so is one without an
institution. Days until death are left out, as they are what is to be told.

    python docs/examples/lung.py
    bench data lung.csv --label lived_a_year --site institution --html lung.html
"""

import sys
from importlib.util import find_spec
from pathlib import Path

import pandas as pd

DAYS = 365
NAMES = {"ph.ecog": "ecog", "ph.karno": "karnofsky", "pat.karno": "karnofsky_by_patient", "meal.cal": "calories"}
"""Scores of how well a patient gets through the day, by the physician and by the patient, and calories at meals."""


def patients() -> pd.DataFrame:
    """One row for each patient whose first year is known."""
    package = find_spec("lifelines")  # found and not imported: the rest of the package is not needed
    if package is None or package.origin is None:
        sys.exit("this needs the table of lifelines: pip install --no-deps lifelines==0.30.3")
    lung = pd.read_csv(Path(package.origin).parent / "datasets" / "lung.csv")
    lung = lung[((lung["time"] >= DAYS) | (lung["status"] == 1)) & lung["inst"].notna()]
    return (
        lung.assign(
            institution=lung["inst"].astype(int),
            sex=lung["sex"].map({1: "m", 2: "f"}),
            lived_a_year=(lung["time"] >= DAYS).map({True: "yes", False: "no"}),
        )
        .drop(columns=["inst", "time", "status"])
        .rename(columns={**NAMES, "wt.loss": "weight_loss"})
    )


if __name__ == "__main__":
    patients().to_csv("lung.csv", index=False)
