"""Published numbers, and the comparison with them."""

import re
from pathlib import Path

from bench.plugin import PUBLISHED

for _file in sorted(Path(__file__).parent.glob("*.yaml")):
    # searched as text, because to parse the files takes longer than to read a grid
    _tables = re.findall(r"^ *- id: *(\w+)", _file.read_text(encoding="utf-8"), re.MULTILINE)
    PUBLISHED.update(dict.fromkeys(_tables, _file))
