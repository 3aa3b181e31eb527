"""Simulated coverage of the intervals that reports print."""
