"""pFLeague: the method interface, the engine, the federation loop and the command line."""

__version__ = "0.1.0"
