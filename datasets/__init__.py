"""Data sets and partitions; each module registers its own with `bench.plugin`."""

PFL_BENCH = True  # distinguishes this package from another distribution's `datasets`
