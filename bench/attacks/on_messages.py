"""Attacks by messages that each malicious client makes by itself, from its honest update u.

`noise`: the Gaussian attack of Blanchard et al. 2017, "Machine Learning with Adversaries", section 4, and attack A2 of
Li et al. 2021, "Ditto". `sign_flip`: Li et al. 2019, "RSA: Byzantine-Robust Stochastic Aggregation Methods", section 5.
`scale`: the model replacement of Bagdasaryan et al. 2020, equation 3, and attack A3 of "Ditto".
"""

import numpy as np
from torch import Tensor

from bench.attacks.attack import Attack, AttackHyper
from bench.method import hp
from bench.plugin import ATTACKS


class NoiseHyper(AttackHyper):
    """Settings of `noise`: the standard deviation of each number (`std`)."""

    std: float = hp(1.0, gt=0, allow_inf_nan=False)


@ATTACKS.register("noise")
class GaussianNoise(Attack):
    """Numbers drawn from N(0, std^2) in place of an update."""

    Hyper = NoiseHyper

    def forge(self, malicious: Tensor, benign: Tensor, rng: np.random.Generator) -> Tensor:
        drawn: Tensor = malicious.new_tensor(rng.standard_normal(malicious.shape))
        return drawn.mul(self.hp.std)


class FactorHyper(AttackHyper):
    """Settings of `sign_flip`: the factor of the update."""

    factor: float = hp(1.0, gt=0, allow_inf_nan=False)


@ATTACKS.register("sign_flip")
class SignFlip(Attack):
    """-factor u. The mean of n updates, m of them flipped, turns round where factor > (n - m) / m."""

    Hyper = FactorHyper

    def forge(self, malicious: Tensor, benign: Tensor, rng: np.random.Generator) -> Tensor:
        return malicious.mul(-self.hp.factor)


class ScaleHyper(AttackHyper):
    """Settings of `scale`: the factor of the update."""

    factor: float = hp(10.0, gt=0, allow_inf_nan=False)


@ATTACKS.register("scale")
class Scale(Attack):
    """factor u. With factor n / m the mean of n updates is near that of the m attackers."""

    Hyper = ScaleHyper

    def forge(self, malicious: Tensor, benign: Tensor, rng: np.random.Generator) -> Tensor:
        return malicious.mul(self.hp.factor)


@ATTACKS.register("honest")
class Honest(Attack):
    """Nothing: the same clients are drawn as under an attack, so that the means over the others can be compared. It is
    the control, and no attack of a paper."""
