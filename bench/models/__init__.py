"""Models, one file per family. Each has a body that computes features and a linear head that computes logits from them.

`bench.models.factory.build` makes a model by name, without weights; `bench.models.init.initialise` draws the weights.
"""

PFL_BENCH = True  # tells the registry that this is our package, not another distribution of the same name
