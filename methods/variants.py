"""One method under several names, each with its own defaults."""

from typing import Any

from bench.method import METHODS, Hyperparameters, Method


def variant(name: str, method: type[Method], hyper: type[Hyperparameters]) -> None:
    """Register a method under another name: the same code with the defaults (and the docstring) of `hyper`.

    Raises:
        TypeError: a function of the method uses `super()`, which would refer to the class that it was written in.
    """
    bound = [key for key, value in vars(method).items() if "__class__" in _free_names(value)]
    if bound:
        raise TypeError(
            f"{method.__name__}.{bound[0]} has super(), so {name!r} cannot be made of it: name the base class"
        )
    body = {key: value for key, value in vars(method).items() if key not in ("__dict__", "__weakref__")}
    body |= {"Hyper": hyper, "__doc__": hyper.__doc__, "__qualname__": hyper.__qualname__.removesuffix("Hyper")}
    METHODS.register(name)(type(body["__qualname__"], method.__bases__, body))


def _free_names(value: Any) -> tuple[str, ...]:
    function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
    code = getattr(function, "__code__", None)
    return code.co_freevars if code else ()
