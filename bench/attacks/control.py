"""The control of attacks."""

from bench.attacks.attack import Attack
from bench.plugin import ATTACKS


@ATTACKS.register("honest")
class Honest(Attack):
    """Nothing: the same clients are drawn as under an attack, so that the means over the others can be compared.

    It is no attack of a paper.
    """
