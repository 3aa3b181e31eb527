"""Statistics, tables, figures and the HTML page; `published/` has the numbers printed in the papers."""
