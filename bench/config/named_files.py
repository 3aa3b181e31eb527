"""YAML files that users name by a path, or by the name of one that comes with the harness: grids and studies."""

import importlib.resources
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from bench.errors import UserError, did_you_mean
from bench.places import kind_of


@dataclass(frozen=True)
class NamedFiles:
    """The files of one kind.

    Attributes:
        kind: what messages call them.
        package, folder: where those lie that come with the harness.
    """

    kind: str
    package: str
    folder: str

    def builtin(self) -> list[str]:
        """Names of those that come with the harness."""
        folder = importlib.resources.files(self.package) / self.folder
        return sorted(file.name.removesuffix(".yaml") for file in folder.iterdir() if file.name.endswith(".yaml"))

    def read(self, name_or_path: str) -> tuple[str, str, str]:
        """Read a file; a path goes before a name, which may have `.yaml` at its end.

        Returns:
            Its text, its name in messages, and its name without the ending.

        Raises:
            UserError: there is none, or it cannot be read.
        """
        path, name = Path(name_or_path), name_or_path.removesuffix(".yaml")
        if kind_of(path) == "a file":
            try:
                return path.read_text(encoding="utf-8-sig"), str(path), path.stem
            except UnicodeDecodeError as error:
                raise UserError(f"{path}: not text in UTF-8 (byte {error.start})") from None
            except OSError as error:
                raise UserError(f"{path}: cannot be read: {error.strerror}") from None
        known = self.builtin()
        if name not in known:
            raise no_such_file(self.kind, name_or_path, known)
        file = importlib.resources.files(self.package) / self.folder / f"{name}.yaml"
        return file.read_text(encoding="utf-8"), file.name, name


def no_such_file(kind: str, asked: str, builtin: Collection[str]) -> UserError:
    """The error for a name under which there is no file of a kind, with the files beside it and what is built in."""
    path = Path(asked)
    if there := kind_of(path):
        return UserError(f"{asked} is {there}, not a {kind} file.{_listed(path) if path.is_dir() else ''}")
    if not path.parent.is_dir():
        return UserError(f"there is no {kind} file {asked!r}: there is no folder {str(path.parent)!r}")
    near = did_you_mean(path.name, [*(file.name for file in _yaml_files(path.parent)), *builtin])
    hint = near or f"{_listed(path.parent)} Built in: {', '.join(builtin)}"
    return UserError(f"there is no {kind} file {asked!r}, and no built-in {kind} of that name.{hint}")


def missing_option(kind: str, option: str, command: str) -> UserError:
    """The error for a command without its file, with the files of the working folder."""
    problem = f"the {kind} is missing, a file or the name of a built-in one: bench {command} {option}NAME."
    return UserError(problem + _listed(Path()))


def _yaml_files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.iterdir() if file.suffix in (".yaml", ".yml"))


def _listed(folder: Path) -> str:
    files = [str(file) for file in _yaml_files(folder)]
    return f" Files here: {', '.join(files[:10])}{', ...' if len(files) > 10 else ''}." if files else ""
