"""Croissant 1.1, the metadata that search engines and data loaders read of a data set: JSON-LD with licence, source,
files with checksums, citation, and columns of tables (MLCommons' specification, http://mlcommons.org/croissant/1.1).

What is not known is left out, never guessed; the description says so.
"""

import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

VERSION = "http://mlcommons.org/croissant/1.1"
_TERMS = (
    "arrayShape", "citeAs", "column", "containedIn", "equivalentProperty", "extract", "field", "fileProperty",
    "fileObject", "fileSet", "format", "includes", "isArray", "isLiveDataset", "jsonPath", "key", "md5", "parentField",
    "path", "recordSet", "references", "regex", "repeated", "replace", "samplingRate", "separator", "source",
    "subField", "transform",
)  # fmt: skip
CONTEXT: dict[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "sc": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "dct": "http://purl.org/dc/terms/",
    "conformsTo": "dct:conformsTo",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "description": {"@container": "@language"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "name": {"@container": "@language"},
    **{term: f"cr:{term}" for term in _TERMS},
}
"""The specification's own `@context`."""
_FORMATS = {
    ".bib": "application/x-bibtex", ".bz2": "application/x-bzip2", ".csv": "text/csv", ".gz": "application/gzip",
    ".json": "application/json", ".tgz": "application/gzip", ".txt": "text/plain", ".xz": "application/x-xz",
    ".zip": "application/zip",
}  # fmt: skip
_BYTES = "application/octet-stream"


def metadata(
    name: str,
    description: str,
    *,
    url: str = "",
    licence: str = "",
    bibtex: str = "",
    published: str = "",
    version: str = "",
    distribution: Sequence[Mapping[str, Any]] = (),
    record_sets: Sequence[Mapping[str, Any]] = (),
) -> str:
    """Write the metadata of a data set as JSON; the same facts give the same bytes.

    Args:
        name: what the data set is called.
        description: a few sentences.
        url: the page that describes it.
        licence: address of its licence, or an SPDX identifier.
        bibtex: what to cite; the authors of the first entry are the creators.
        published: ISO date, or a year.
        version: of the data, `MAJOR.MINOR.PATCH`.
        distribution: files, as `file_object` and `file_set` make them.
        record_sets: tables, as `record_set` makes them.
    """
    facts = {
        "@context": CONTEXT, "@type": "sc:Dataset", "conformsTo": VERSION, "name": name, "description": description,
        "url": url, "license": licence, "creator": _creators(bibtex), "datePublished": published, "version": version,
        "citeAs": bibtex, "distribution": list(distribution), "recordSet": list(record_sets),
    }  # fmt: skip
    return json.dumps({key: value for key, value in facts.items() if value}, indent=1, ensure_ascii=False) + "\n"


def file_object(
    name: str, url: str, *, sha256: str = "", md5: str = "", size: int | str = "", description: str = ""
) -> dict[str, Any]:
    """Describe a file that has a checksum.

    Args:
        name: name of the file, which identifies it in the metadata.
        url: where it is, or its path beside the metadata.
        sha256, md5: one of the two, in hexadecimal digits.
        size: in bytes, or with a unit, such as `248 MB`.
        description: what is in it.
    """
    facts = {
        "@type": "cr:FileObject", "@id": name, "name": name, "description": description, "contentUrl": url,
        "contentSize": f"{size} B" if isinstance(size, int) else size, "sha256": sha256,
        "md5": md5, "encodingFormat": _FORMATS.get(Path(name).suffix, _BYTES),
    }  # fmt: skip
    return {key: value for key, value in facts.items() if value}


def file_set(pattern: str, description: str) -> dict[str, Any]:
    """Describe files that the user puts somewhere, of which no checksum is known, by a pattern of their names."""
    return {
        "@type": "cr:FileSet", "@id": "files", "name": "files", "description": description,
        "encodingFormat": _FORMATS.get(Path(pattern).suffix, _BYTES), "includes": pattern,
    }  # fmt: skip


def record_set(name: str, description: str, file: str, columns: Mapping[str, tuple[str, str]]) -> dict[str, Any]:
    """Describe a CSV table.

    Args:
        name, description: of the table.
        file: name of its `file_object`.
        columns: by column, its type (`Text`, `Integer`, `Float`, `Boolean`) and what it says.
    """
    fields = [
        {
            "@type": "cr:Field", "@id": f"{name}/{column}", "name": column, "description": text,
            "dataType": f"sc:{kind}", "source": {"fileObject": {"@id": file}, "extract": {"column": column}},
        }
        for column, (kind, text) in columns.items()
    ]  # fmt: skip
    return {"@type": "cr:RecordSet", "@id": name, "name": name, "description": description, "field": fields}


def _creators(bibtex: str) -> list[dict[str, str]]:
    """The authors of the first entry; a name in braces is an organisation's."""
    match = re.search(r"^  author = \{(.*)\},$", bibtex, re.MULTILINE)
    names = match[1].split(" and ") if match else []
    people = [name for name in names if name != "others"]
    return [
        {"@type": "sc:Organization" if name.startswith("{") else "sc:Person", "name": _plain(name)} for name in people
    ]


def _plain(author: str) -> str:
    """A name as it is spoken, without LaTeX: `{\\'e}` is é, and `Last, First` is turned round."""
    marks = {"'": "\u0301", '"': "\u0308", "`": "\u0300", "^": "\u0302", "~": "\u0303", "v": "\u030c", "c": "\u0327"}
    text = re.sub(r"\{\\([\"'`^~vc])\{?(\w)\}?\}", lambda match: match[2] + marks[match[1]], author)
    last, comma, first = text.strip("{}").partition(", ")
    return unicodedata.normalize("NFC", f"{first} {last}" if comma else last)
