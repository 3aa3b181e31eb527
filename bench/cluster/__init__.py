"""Run cells on the nodes of a Ray cluster. Ray is imported only when this package is used."""
