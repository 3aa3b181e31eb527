"""Tests, intervals and rankings."""
