"""Checks of a run's files, and cells that are computed again."""
