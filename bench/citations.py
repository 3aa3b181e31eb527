"""BibTeX of what a run used: its methods, data sets, attacks, server rules, channels, adapters, and pFLeague itself.

The facts are in `papers.bib` beside this file. Its entries are BibTeX as it stands, one field a line; the field
`keywords` has the ids that an entry belongs to, and an entry `@comment` those that have no paper.
"""

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench import __version__
from bench.errors import UserError, did_you_mean
from bench.settings import RegisteredPart, Settings

FILE = Path(__file__).with_name("papers.bib")
DATA_SET = "data:"
KINDS = ("", DATA_SET, "attack:", "server:", "channel:", "adapter:")
"""Prefixes of ids among the keywords, methods' first: things of two kinds may have one name."""

_ENTRY = re.compile(r"^@(\w+)\{(?:[^,\n]*),\n(?:  .*\n)*?\}\n", re.MULTILINE)
_KEYWORDS = re.compile(r"^  keywords = \{(.*)\},\n", re.MULTILINE)


@dataclass(frozen=True)
class Citation:
    """BibTeX entries, and names for which none is recorded.

    Attributes:
        bibtex: the entries, each once, in the order of the file; empty where there is nothing to cite.
        unrecorded: names that `papers.bib` does not know: those of plug-ins.
    """

    bibtex: str
    unrecorded: tuple[str, ...] = ()

    @property
    def notes(self) -> list[str]:
        """Lines on papers that the reader must look up."""
        return [f"no paper is recorded for {name}: cite its own" for name in self.unrecorded]


@functools.cache
def papers() -> Mapping[str, tuple[str, ...]]:
    """BibTeX entries by id, without keywords; ids begin with one of `KINDS`. What has no paper has no entry."""
    entries: dict[str, tuple[str, ...]] = {}
    for entry in _ENTRY.finditer(FILE.read_text(encoding="utf-8")):
        text = _KEYWORDS.sub("", entry[0])
        for name in re.findall(r"[^\s,]+", " ".join(_KEYWORDS.findall(entry[0]))):
            entries[name] = (*entries.get(name, ()), *([] if entry[1] == "comment" else [text]))
    return entries


def software(**facts: str) -> str:
    """BibTeX of pFLeague itself: its entry with the version and further fields, such as `note`."""
    [entry] = papers()["software:pfleague"]
    fields = {"version": __version__} | facts
    return entry.removesuffix("}\n") + "".join(f"  {name} = {{{value}}},\n" for name, value in fields.items()) + "}\n"


def cite(names: Iterable[str] = (), cells: Iterable[Settings] = (), **facts: str) -> Citation:
    """Collect the papers of what has these names, and of all that cells used, pFLeague among it.

    Args:
        names: of methods, data sets, attacks, server rules, channels' operations and adapters that come with pFLeague.
        cells: settings of cells; some of what they use may be of plug-ins.
        facts: further fields of pFLeague's own entry.

    Raises:
        UserError: nothing that comes with pFLeague has one of `names`.
    """
    ids: set[str] = set()
    for name in names:
        recorded = {kind + name for kind in KINDS} & papers().keys()
        if not recorded:
            likely = did_you_mean(name, sorted(known_names()))
            listed = "`bench methods` and `bench datasets` list what comes with pFLeague"
            raise UserError(f"no paper is recorded for {name!r}.{likely} {listed}")
        ids |= recorded
    used: dict[str, str] = {}
    for settings in cells:
        sets = [settings.dataset, *([settings.public.name] if settings.public else [])]
        used |= {settings.method: settings.method, **{DATA_SET + name: name for name in sets}}
        parts: list[tuple[str, RegisteredPart | None]] = [("attack:", settings.attack), ("server:", settings.server)]
        parts += [("channel:", operation) for operation in settings.channel]
        used |= {kind + part.name: part.name for kind, part in parts if part}
        used |= {"adapter:" + settings.adapters.name: settings.adapters.name} if settings.adapters else {}
    itself = [software(**facts)] if used else []
    unrecorded = (name for entry, name in used.items() if entry not in papers())
    cited = (text for entry, texts in papers().items() if entry in ids | used.keys() for text in texts)
    return Citation("\n".join([*itself, *dict.fromkeys(cited)]), tuple(unrecorded))


def known_names() -> set[str]:
    """Names of what comes with pFLeague, without their kinds."""
    return {entry.rpartition(":")[2] for entry in papers() if not entry.startswith("software:")}
