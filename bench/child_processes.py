"""Environment of the Python processes that this one starts: they find the packages that this one has."""

import os
import sys


def safe_path() -> dict[str, str]:
    """Make the variable by which a Python imports nothing from the working folder; none if this one does.

    A folder of the user's with packages such as `methods` or `datasets` would otherwise go before this project's in the
    processes that cells run in, and not in the command itself.
    """
    first = sys.path[0] if sys.path else ""
    here = first == "" or os.path.realpath(first) == os.path.realpath(os.curdir)
    return {} if here else {"PYTHONSAFEPATH": "1"}
