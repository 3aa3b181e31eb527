"""Pin what is computed now; what may not change is refused."""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from tests.golden.pins import CELLS, DEFAULTS, DIGESTS, IDS, defaults, golden_id, grid_ids, read, run


def main() -> int:
    """Write the files, or say which numbers changed under an id that did not."""
    torch.set_num_threads(1)  # as in the tests: the number is part of the recorded path
    known: dict[str, Any] = read(DIGESTS) if DIGESTS.exists() else {}
    pinned, refused = {}, []
    for name in CELLS:
        before = known.get(name, {"id": golden_id(name), "digests": {}})
        with tempfile.TemporaryDirectory() as folder:
            path, found = run(name, Path(folder))
        paths = before["digests"] if before["id"] == golden_id(name) else {}  # others are to be computed there again
        if any(found.get(column) != digest for column, digest in paths.get(path, {}).items()):
            refused.append(name)
        pinned[name] = {"id": golden_id(name), "digests": {**paths, path: found}}
    if refused:
        print(f"the numbers of {', '.join(refused)} changed and the ids did not: raise RESULT_VERSION in")
        print("bench/config/identity.py if that is meant, and run this again. Nothing was written.")
        return 1
    for file, content in ((DIGESTS, pinned), (IDS, grid_ids()), (DEFAULTS, defaults())):
        file.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return 0


sys.exit(main())
