"""Models: a body that gives features and a linear head that turns them into logits; one file per family.

`bench.models.factory.build` makes one by name, without weights; `bench.models.init.initialise` draws the weights.
"""

PFL_BENCH = True  # tells the registry that this is our package, not another distribution of the same name
