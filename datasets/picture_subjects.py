"""Whom or what each picture of a folder is of, told by its path."""

import re
from collections.abc import Sequence

from bench.errors import UserError

_FEW = 10  # values up to which a part of the names is rather a camera or a day
_USUAL = (
    re.compile(r"(?i)(?:patient|subject|person|participant|proband|individual|case)s?[ _.-]?[0-9]+"),
    re.compile(r"[^/]*[0-9](?=[ _.-][a-z]*[0-9]+[.][^/]+$)"),  # a number, and after it the picture's
)


def subjects_of(paths: Sequence[str], expression: str) -> list[str]:
    """Find the subject of each picture.

    Args:
        paths: `class/file` of each picture, or `group/class/file`.
        expression: a regular expression; its groups together are the subject, or all of it where it has no group.

    Raises:
        UserError: it is no regular expression, or does not occur in a path.
    """
    try:
        pattern = re.compile(expression)
    except re.error as error:
        raise UserError(f"image_folder: subject = {expression!r} is no regular expression: {error}") from None
    subjects = [_searched(pattern, path) for path in paths]
    if lacking := [path for path, subject in zip(paths, subjects, strict=True) if not subject]:
        raise UserError(
            f"image_folder: subject = {expression!r} finds nothing in {len(lacking)} of {len(paths)} paths, such as "
            f"{lacking[0]!r}; it should find in each whom or what the picture is of"
        )
    return subjects


def unnamed_subjects(paths: Sequence[str]) -> list[str]:
    """Hint at a part of the files' names by whose repetitions several pictures may be of one subject."""
    folders = len({path.rpartition("/")[0] for path in paths})
    for pattern in _USUAL:
        subjects = [_searched(pattern, path.rpartition("/")[2]) for path in paths]
        if all(subjects) and max(_FEW, folders) < (count := len(set(subjects))) < len(paths):
            return [
                f"the names of {len(paths)} pictures have {count} parts such as {subjects[0]!r}: if they say of whom "
                f"or what a picture is, set the option `subject: '{pattern.pattern}'`; else pictures of one are both "
                "trained on and tested on"
            ]
    return []


def _searched(pattern: re.Pattern[str], path: str) -> str:
    match = pattern.search(path)
    parts = () if match is None else match.groups("") or (match[0],)
    return " ".join(parts) if all(parts) else ""
