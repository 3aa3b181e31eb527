"""A method and a model for pFLeague in a package of their own (docs/plugins.md)."""
