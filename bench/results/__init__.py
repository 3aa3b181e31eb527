"""What a run gives to its reader: results, the reported round, saved models, packed runs."""
