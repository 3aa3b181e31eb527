"""The parts that a report's page is made of."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from reports.pictures.canvas import Picture
from reports.tables.table import Table


@dataclass(frozen=True)
class Section:
    """A part of the page; `points` are a list; what stands in `more` and in `parts` is folded away at first."""

    id: str
    title: str
    text: str = ""
    tables: tuple[Table, ...] = ()
    pictures: tuple[Picture, ...] = ()
    more: tuple[Table, ...] = ()
    parts: tuple["Section", ...] = ()
    points: tuple[str, ...] = ()

    def named(self, suffix: str) -> "Section":
        """Copy of the section whose names, with `suffix`, clash with no other protocol's."""
        return replace(
            self,
            id=self.id + suffix,
            tables=tuple(replace(table, id=table.id + suffix) for table in self.tables),
            pictures=tuple(replace(picture, name=picture.name + suffix) for picture in self.pictures),
            more=tuple(replace(table, id=table.id + suffix) for table in self.more),
            parts=tuple(part.named(suffix) for part in self.parts),
        )

    def all(self) -> Iterator["Section"]:
        """The section itself and all parts below it."""
        yield self
        for part in self.parts:
            yield from part.all()
