"""YAML files that users name by a path, or by the name of one that comes with the harness: grids and studies."""

import importlib.resources
import pathlib
from dataclasses import dataclass

from bench.config.nearby import no_such_file
from bench.errors import UserError
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
        path, name = pathlib.Path(name_or_path), name_or_path.removesuffix(".yaml")
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
