"""Cells as jobs: worker processes, the run store, checkpoints, results, estimates and MLflow's mirror."""
