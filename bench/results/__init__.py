"""The results of a run for its reader: figures, the reported round, saved models, packed runs."""
