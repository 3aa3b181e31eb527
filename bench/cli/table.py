"""Print tables in a terminal."""

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table


def print_table(table: "Table") -> None:
    """Print a table without cutting any number or word.

    In a narrow terminal the text of a cell is wrapped; if that is not enough, lines are wider than the terminal.
    """
    from rich.cells import cell_len
    from rich.console import Console

    for column in table.columns:
        column.overflow = "fold"  # by default rich cuts words and adds an ellipsis
        words = [word for cell in (column.header, *column.cells) for word in str(cell).split()]
        column.min_width = max(map(cell_len, words), default=0)
    # without a terminal, rich would use 80 columns
    Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else 160).print(table, crop=False)
