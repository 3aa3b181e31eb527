"""The commands of `bench`."""

COMMANDS = """\
bench grids
bench datasets
bench models
bench methods
bench cite fedavg
bench data grid.yaml
bench show grid.yaml
bench new-method mine
bench from-pfllib -- -algo Ditto -mu 0.1
bench run --grid grid.yaml --out run --jobs 1 --no-tracking --keep best
bench status run
bench log run {cell}
bench results run
bench evaluate run --tests others
bench export run {cell} --out models
bench clean run
bench pack run --out packed.tar.xz
bench unpack packed.tar.xz unpacked
bench verify packed.tar.xz --cells 1 --jobs 1 --blind
bench sites export grid.yaml --only method=fedavg --out job
"""
"""Those that `docs/ten-tasks.md` does not have: its commands are run in new interpreters, too."""
