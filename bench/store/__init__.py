"""The files of a run: cells' folders, checkpoints, tables, what they were computed with."""
