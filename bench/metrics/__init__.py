"""Scores of a classifier beside accuracy and loss, by name: what `metrics:` in a grid may list.

A score is a function of `labels [n]` and `logits [n, classes]` (NumPy, float64). It is nan
where the samples do not define it.
"""

PFL_BENCH = True  # tells the registry that this is our package, not another distribution of the same name
