"""One method under several names, each with its own defaults."""

from bench.method import METHODS, Hyperparameters, Method


def variant(name: str, method: type[Method], hyper: type[Hyperparameters]) -> None:
    """Register a method under a further name: the same code with the defaults (and the docstring) of `hyper`."""
    body = {key: value for key, value in vars(method).items() if key not in ("__dict__", "__weakref__")}
    body |= {"Hyper": hyper, "__doc__": hyper.__doc__, "__qualname__": hyper.__qualname__.removesuffix("Hyper")}
    METHODS.register(name)(type(body["__qualname__"], method.__bases__, body))
