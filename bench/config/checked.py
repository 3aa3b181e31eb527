"""Settings as a user makes them in a script: `bench.Settings`."""

from typing import Self

from pydantic import model_validator

from bench.config.completion import completed
from bench.settings import Settings


class CheckedSettings(Settings):
    """Settings of one training run, checked where they are made.

    An unknown method, hyperparameter, data set, option or key is refused, and what is left out has its default. What
    somebody else's run holds is read as plain `bench.settings.Settings`, whose method need not be known here.

    Example:
        >>> bench.Settings(method="ditto", alpha=0.1, hp={"lam": 0.5}).hp["lam"]
        0.5

    Raises:
        UserError: an unknown name, a value that a hyperparameter or option cannot have, or settings that do not go
            together.
        pydantic.ValidationError: an unknown setting, or a value that it cannot have.
    """

    @model_validator(mode="after")
    def _complete(self) -> Self:
        self.__dict__.update(completed(self))
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Settings) and self.model_dump() == other.model_dump()

    def __repr_name__(self) -> str:
        return "Settings"
