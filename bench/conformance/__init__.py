"""Checks that any method must pass, and the scaffold for a new one."""
