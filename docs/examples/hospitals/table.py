"""Write `hospitals.csv`: 12 made-up hospitals, of which every third has other units of one measurement.

It is as such tables are: semicolons, decimal commas, gaps, a category, a small hospital, a person at two of them.
"""

import numpy as np
import pandas as pd

rng = np.random.default_rng(0)
sizes = [90, 60, 120, 80, 45, 100, 70, 110, 50, 85, 95, 15]
parts = []
for number, size in enumerate(sizes):
    ill = rng.random(size) < rng.uniform(0.3, 0.7)
    glucose = rng.normal(5.5, 0.8, size) + 0.9 * ill  # mmol/l
    parts.append(
        pd.DataFrame(
            {
                "hospital": f"H{number + 1:02d}",
                "age": (rng.normal(55, 12, size) + 5 * ill).round(),
                "glucose": (glucose * (18 if number % 3 == 0 else 1)).round(1),  # mg/dl in every third
                "pressure": np.where(rng.random(size) < 0.1, np.nan, rng.normal(125, 15, size) + 8 * ill).round(1),
                "smoker": np.where(rng.random(size) < 0.3 + 0.2 * ill, "yes", "no"),
                "outcome": np.where(ill, "ill", "well"),
            }
        )
    )
table = pd.concat([*parts, parts[0].iloc[[7]].assign(hospital="H02")])
table.to_csv("hospitals.csv", index=False, sep=";", decimal=",")
