"""SCD: Chen et al. 2023 (NeurIPS), "Spectral Co-Distillation for Personalized Federated Learning", Algorithm 1."""

from typing import Any, ClassVar, Literal

import torch
from pydantic import model_serializer, model_validator
from torch import Tensor

from bench.method import (
    METHODS, SGD, Batch, Client, Do, Method, Params, Program, Range, Server, State, Train, Upload, Values,
    cross_entropy, hp,
)  # fmt: skip
from methods.spectrum import SpectralOptions, agree, divergence, spectrum

PRESETS: dict[str, dict[str, Any]] = {
    "generalised_kl": {},
    "simplex": {"normalise": "simplex", "fft_norm": "backward"},
    "as_printed": {"normalise": "none", "fft_norm": "backward"},
    "restart": {"personal_start": "generic"},
    "released_code": {
        "normalise": "simplex", "order": "normalise_first", "transform": "fft2_layer", "fft_norm": "backward",
        "params": "weights_only", "detach_student": True, "skip_first_batch": True, "extra_l2": 0.2,
        "tau": 0.4, "lambda_g": 0.3, "lambda_p": 0.4,
    },
}  # fmt: skip


class Hyper(SpectralOptions):
    """Hyperparameters of SCD; lambda_g and lambda_p come from the rows of Tables 7 and 8 that equal Table 1.

    A preset sets the options that are not given. `generalised_kl` interprets D as a generalised KL divergence of
    orthonormal spectra, `simplex` as a KL divergence of spectra that sum to 1, `as_printed` takes the formula
    literally, `released_code` follows the authors' code, and in `restart` the personal phase starts from the client's
    updated generic model (`personal_start`) instead of its own model of the previous round.
    """

    preset: Literal["generalised_kl", "simplex", "as_printed", "released_code", "restart"] = "generalised_kl"
    tau: float = hp(0.4, ge=0, le=1, static=True, search=Range(0.05, 1.0))
    lambda_g: float = hp(0.05, ge=0, search=Range(1e-3, 1e3, log=True))
    lambda_p: float = hp(0.01, ge=0, search=Range(1e-3, 1e3, log=True))
    personal_epochs: int | None = hp(None, ge=0, static=True)
    personal_lr: float | None = hp(None, gt=0, static=True)
    personal_start: Literal["kept", "generic"] = "kept"

    @model_serializer(mode="wrap")
    def _spelled_out(self, dump: Any) -> dict[str, Any]:
        """Leave out the preset's name, so that a preset and the same options given one by one are the same cell."""
        return {name: value for name, value in dump(self).items() if name != "preset"}

    @model_validator(mode="before")
    @classmethod
    def _fill_preset(cls, given: Any) -> Any:
        return {**PRESETS.get(given.get("preset", ""), {}), **given} if isinstance(given, dict) else given

    def degenerate(self) -> list[str]:
        found = []
        if self.lambda_g == 0 or self.tau == 0:
            found.append("lambda_g = 0 (or tau = 0): the generic model of SCD is that of FedAvg")
        if self.lambda_p == self.extra_l2 == 0 and self.personal_start == "kept":
            found.append("lambda_p = 0: the personalized models of SCD are those of Local")
        if self.detach_student:
            found.append("detach_student: the spectral term has no gradient, as in the released code")
        return found


@METHODS.register("scd")
class SCD(Method):
    """Generic and personalized models teach each other through the spectra of their weights."""

    Hyper: ClassVar = Hyper
    trains = "both"
    mean_of = ("model",)

    def init_client(self, server: Server, client: Client) -> None:
        client.state["personal"] = server.initial_model()

    def client_round(self, client: Client, down: State) -> Program:
        o, kept = self.hp, client.state["personal"]
        generic = yield Train(
            {"w": down["model"]},
            step=generic_step,
            context={"teacher": spectrum(kept, o.tau, o)},
        )
        yield Upload({"model": generic["w"]})  # the client continues to train during the transfer
        yield from self.personal_phase(client, generic["w"], down["model"])
        return generic["w"]

    def unselected_round(self, client: Client, down: State) -> Program:
        yield from self.personal_phase(client, down["model"], down["model"])

    def personal_phase(self, client: Client, generic: Params, received: Params) -> Program:
        """Algorithm 1, lines 5 to 7: the personalized model learns from data and from the generic one's spectrum."""
        o = self.hp
        start = generic if o.personal_start == "generic" else client.state["personal"]
        personal = yield Train(
            {"w": start},
            step=personal_step,
            context={"teacher": spectrum(generic, 1.0, o), "received": received.weights},
            epochs=o.personal_epochs,
            optimizer=SGD(lr=o.personal_lr),
        )
        client.state["personal"] = personal["w"]

    def personal(self, server: Server, client: Client, down: State) -> Params:
        kept: Params = client.state["personal"]
        return kept


def generic_step(do: Do, values: Values, batch: Batch, ctx: Any) -> Values:
    """One step on L^G = CE + lambda_G D(truncated spectrum of w_G || that of w_p) (Algorithm 1, line 4)."""
    return _step(do, values, batch, ctx, ctx.hp.lambda_g, ctx.hp.tau)


def personal_step(do: Do, values: Values, batch: Batch, ctx: Any) -> Values:
    """One step on L^p = CE + lambda_p D(full spectrum of w_p || that of w_G) (Algorithm 1, line 7)."""
    return _step(do, values, batch, ctx, ctx.hp.lambda_p, 1.0)


def _step(do: Do, values: Values, batch: Batch, ctx: Any, lam: Tensor, tau: float) -> Values:
    first = batch.in_epoch == (0 if ctx.hp.skip_first_batch else -1)
    lam = torch.where(first, 0.0, lam)

    def term(model: Any, values: Values, batch: Batch, ctx: Any) -> Tensor:
        return divergence(values["w"], ctx.teacher, tau, ctx.hp)

    def whole(model: Any, values: Values, batch: Batch, ctx: Any) -> Tensor:
        return cross_entropy(model, values, batch, ctx) + lam * term(model, values, batch, ctx)

    if ctx.hp.scale != "grad_balance":
        gradients, values = do.gradient(whole, values, batch, ctx)
    else:
        w = values["w"]
        spectral, _ = do.gradient(term, values, batch, ctx)
        gradients, values = do.gradient(cross_entropy, values, batch, ctx)
        g, h = gradients["w"], spectral["w"]
        ratio = g.norm() / h.norm().clamp_min(torch.finfo(h.dtype).tiny)
        # If both spectra agree, h is rounding noise (or 0), which must not be scaled up to a step.
        gradients = {"w": g + lam * torch.where(agree(w, ctx.teacher, tau, ctx.hp), 0.0, ratio * h)}
    if "received" in vars(ctx):
        away = values["w"].weights - ctx.received
        pull = torch.where(first, 0.0, ctx.hp.extra_l2) / away.norm().clamp_min(torch.finfo(away.dtype).tiny)
        gradients = {"w": gradients["w"] + pull * away}
    return do.update(values, gradients)
