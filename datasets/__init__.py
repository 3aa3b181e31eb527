"""Data sets and partitions; each module registers its own with `bench.plugin`.

What many loaders take, and explain no further:

- `data_root`: the folder that holds published files. A user's own file has a `path`, relative to the current directory;
  samples that are drawn have neither.
- `download`: whether published files that are missing may be fetched; where nothing can be, it is not used.
- `mean`, `std`: per channel, in units of `x / 255` for bytes and of `x` otherwise; computed from the training part
  unless given, or known of the set.
- `name`: name of the data set in reports; that of the file or folder if empty.
- `draw`: another number gives other samples.

They raise a `UserError` if a file is missing, damaged, or not as it was published.
"""

PFL_BENCH = True  # distinguishes this package from another distribution's `datasets`
