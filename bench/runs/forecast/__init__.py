"""Forecasts of a run's time, memory and bytes."""
