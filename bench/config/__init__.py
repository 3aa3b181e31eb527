"""From a grid file to the settings and the identity of each cell."""
