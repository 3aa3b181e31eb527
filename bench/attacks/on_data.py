"""Attacks by data: malicious clients follow the method on samples that were tampered with.

`label_flip`: Fang et al. 2020, "Local Model Poisoning Attacks to Byzantine-Robust Federated Learning", section 4.1.
`backdoor`: the square of BadNets (Gu et al. 2017) and the model replacement of Bagdasaryan et al. 2020, "How To
Backdoor Federated Learning".
"""

import numpy as np
from torch import Tensor

from bench.attacks.attack import Attack, AttackHyper
from bench.data import Array, Dataset, Indices
from bench.errors import UserError
from bench.method import hp
from bench.plugin import ATTACKS


@ATTACKS.register("label_flip")
class LabelFlip(Attack):
    """Every label y of L classes becomes L - 1 - y."""

    def poison(self, x: Array, y: Indices, dataset: Dataset, rng: np.random.Generator) -> tuple[Array, Indices]:
        return x, dataset.num_classes - 1 - y


class BackdoorHyper(AttackHyper):
    """Settings of `backdoor`: its `target` class, the side of its square in pixels (`size`), the share of a malicious
    client's samples that have it (`poisoned`), and the factor of its updates (`boost`, 1: as they are)."""

    target: int = hp(0, ge=0, static=True)
    size: int = hp(2, ge=1, static=True)
    poisoned: float = hp(0.5, gt=0, le=1)
    boost: float = hp(1.0, gt=0, allow_inf_nan=False)


@ATTACKS.register("backdoor")
class Backdoor(Attack):
    """A bright square in the lower right corner of round(poisoned n) drawn samples, whose label becomes the target.

    With `boost` b an update u is sent as b u. With b = n / m, for n clients in the mean and one attacker among m
    malicious ones that agree, the mean is near the attackers' model (equation 3 of Bagdasaryan et al.).
    """

    Hyper = BackdoorHyper

    @property
    def forges(self) -> bool:
        return bool(self.hp.boost != 1)

    def check(self, dataset: Dataset) -> None:
        if dataset.x.ndim != 4:
            raise UserError(
                f"attack backdoor: its square needs images, and the samples of {dataset.name!r} have shape "
                f"{dataset.shape}; take label_flip, or an attack by messages such as sign_flip"
            )
        if self.hp.size > min(dataset.x.shape[2:]):
            raise UserError(f"attack backdoor: size = {self.hp.size} is larger than the images, {dataset.shape}")
        if self.hp.target >= dataset.num_classes:
            raise UserError(
                f"attack backdoor: target = {self.hp.target} is no class of {dataset.name!r}, which are 0 to "
                f"{dataset.num_classes - 1}"
            )

    def poison(self, x: Array, y: Indices, dataset: Dataset, rng: np.random.Generator) -> tuple[Array, Indices]:
        chosen = rng.choice(len(y), round(self.hp.poisoned * len(y)), replace=False)
        x, y = x.copy(), y.copy()
        x[chosen], y[chosen] = self.trigger(x[chosen], dataset), self.hp.target
        return x, y

    def trigger(self, x: Array, dataset: Dataset) -> Array:
        stamped = x.copy()
        stamped[..., -self.hp.size :, -self.hp.size :] = dataset.x.max()
        return stamped

    def forge(self, malicious: Tensor, benign: Tensor, rng: np.random.Generator) -> Tensor:
        return malicious.mul(self.hp.boost)
