"""Reads a grid file and gives the settings and the identity of each of its cells."""
