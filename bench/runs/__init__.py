"""Cells as jobs: sessions, plans, worker processes, forecasts, checks, MLflow's mirror."""
