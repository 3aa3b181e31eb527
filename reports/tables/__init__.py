"""The tables of a report, as data, HTML and LaTeX."""
