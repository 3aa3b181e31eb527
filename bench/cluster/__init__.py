"""Cells on the nodes of a Ray cluster. Ray is imported only when this room is used."""
