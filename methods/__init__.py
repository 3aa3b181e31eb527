"""Federated learning methods, one file each; every file registers itself in `bench.plugin.METHODS`."""

PFL_BENCH = True  # shows the registry that this is our package, not another distribution of the same name
