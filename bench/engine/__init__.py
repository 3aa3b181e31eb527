"""Runs client programs: batches, steps, cohorts, recording, prediction."""
