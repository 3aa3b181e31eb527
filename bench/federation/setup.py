"""Participants of a cell: its method with hyperparameters and server rule, the clients that train, and their models."""

import copy
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from bench.data import TokenShape
from bench.errors import UserError
from bench.federation.privacy import check_privacy
from bench.method import Arrivals, Everyone, Method, Selection, ServerRule, Tick
from bench.model_call import SingleValueError, keep_still, refuse_single_values
from bench.models import adapters
from bench.params import Spec
from bench.plugin import METHODS, SELECTIONS, SERVER_RULES
from bench.rng import generator
from bench.settings import DEFAULT_SELECTION, ModelsBySize, Settings
from bench.tensors import statistics


def divide_clients(ids: list[int], settings: Settings, named: Sequence[int] = ()) -> tuple[list[int], list[int]]:
    """Divide clients into those that train and new ones held out of training: `named` by the partition, else drawn."""
    if len(ids) <= settings.new_clients:
        raise UserError(
            f"{len(ids)} clients have training samples and {settings.new_clients} are new ones: nobody is left "
            "to train. Use fewer new clients, other numbers of clients, or a larger alpha."
        )
    rng = generator("new clients", settings.seed)
    new = [*named] or sorted(int(i) for i in rng.choice(ids, settings.new_clients, replace=False))
    return [i for i in ids if i not in new], new


def architectures(settings: Settings, sizes: Sequence[int]) -> list[str]:
    """The name of each client's model, by its number of training samples.

    Drawn by size, the client of rank r of N (1 has the fewest samples, ties in the order of clients) has the last of
    the models with probability 1 - r / N, and each of the others with the same share of the rest: COMET says only that
    larger data sets are more likely to have larger models.
    """
    models = settings.architectures or (settings.model,)
    if not isinstance(settings.client_models, ModelsBySize):
        return [models[i % len(models)] for i in range(len(sizes))]
    names = [models[-1]] * len(sizes)
    for rank, client in enumerate(np.argsort(sizes, kind="stable").tolist(), start=1):
        rng = generator("client models", settings.seed, client)
        if rng.random() < rank / len(sizes):
            names[client] = models[rng.integers(len(models) - 1)]
    return names


def frozen_tensors(settings: Settings, name: str, net: nn.Module) -> dict[str, Tensor]:
    """The parameters and buffers of a model of the cell that `frozen` or `adapters` keep as they are, by name.

    Args:
        settings: the cell's settings.
        name, net: a model of the cell, on the meta device, with its adapters.

    Raises:
        UserError: `frozen` names no layer of the model, or all of it, or leaves out parameters that need no gradient.
    """
    tensors = {**dict(net.named_parameters()), **dict(statistics(net))}
    if settings.adapters is not None:
        fixed = adapters.frozen(net, settings.adapters, name)
        bases = {f"{path}.weight" for path, _, _ in adapters.adapted(net)} if moves_base(settings) else set()
        return {path: tensors[path].detach() for path in fixed if path not in bases}
    whole = Spec.of(name, net)
    still = [e for e in whole.params if not (net.get_parameter(e.name).requires_grad or e.under(settings.frozen))]
    if still:
        layers = ", ".join(dict.fromkeys(e.name.rpartition(".")[0] or e.name for e in still))
        listed = f"{', '.join(e.name for e in still[:3])}{', ...' if len(still) > 3 else ''}"
        raise UserError(
            f"model {name!r}: {listed} need no gradient, but would be trained: add `frozen: [{layers}]` to the cell"
        )
    if not settings.frozen:
        return {}
    for prefix in settings.frozen:
        if not any(e.under((prefix,)) for e in whole.params):
            layers = ", ".join(dict.fromkeys(".".join(e.name.split(".")[:-1][:2]) for e in whole.params))
            raise UserError(f"frozen: model {name!r} has no layer {prefix!r}; there are {layers} and those below them")
    if all(e.under(settings.frozen) for e in whole.params):
        raise UserError(f"frozen: nothing of model {name!r} is left to train")
    return {e.name: tensors[e.name].detach() for e in whole.entries if e.under(settings.frozen)}


def moves_base(settings: Settings) -> bool:
    """Whether the cell's method changes the weights of layers with adapters on the server."""
    return bool(METHODS.get(settings.method).moves_base)


def cell_spec(settings: Settings, name: str, net: nn.Module) -> Spec:
    """The spec of a model of the cell, without values of what is frozen; errors as those of `frozen_tensors`."""
    return Spec.of(name, net, frozen_tensors(settings, name, net))


def check_batch_size(settings: Settings, name: str, spec: Spec, shape: tuple[int, ...]) -> None:
    """Refuse batches of one sample for a model whose BatchNorm would get one value per channel of it.

    Raises:
        UserError: the model cannot be trained on batches of this size.
    """
    if settings.batch_size > 1:
        return
    probe = copy.deepcopy(spec.module).to("meta").train()
    keep_still(probe, {entry.name for entry in spec.frozen})
    refuse_single_values(probe)
    sample = shape[:1] if isinstance(shape, TokenShape) else shape
    x = torch.zeros(1, *sample, dtype=torch.int64 if isinstance(shape, TokenShape) else None, device="meta")
    try:
        probe(x)
    except SingleValueError:
        raise UserError(
            f"batch_size: 1: BatchNorm in model {name!r} has no variance of a single sample; set `batch_size` to 2 or "
            "more, or take a model with GroupNorm or without normalisation"
        ) from None
    except Exception:  # of another kind: whoever trains the model says so, with a traceback
        return


def warnings(method: Method, settings: Settings, clients: int, device: str) -> list[str]:
    """Collect what the user should know before a cell with `clients` training clients runs, as sentences."""
    texts = degenerate(method)
    if isinstance(method.trigger, Arrivals) and (k := method.trigger.k) > clients:
        texts.append(
            f"the server waits for {k} messages, but only {clients} clients can send one: {clients} make a version"
        )
    if isinstance(method.trigger, Arrivals) and not settings.wait_free:
        texts.append(
            "wait_free: off changes models here, not seconds only: under an asynchronous server a later upload comes "
            "into another version"
        )
    if settings.stragglers and not isinstance(method.trigger, Tick):
        texts.append(
            "stragglers change nothing here: they count on the round clock of the LGA family; "
            "`clock: {slow_clients: ...}` makes clients late on the clock of seconds"
        )
    if settings.precision == "tf32" and torch.device(device).type != "cuda":
        texts.append("precision tf32 changes nothing on a CPU: the products of this cell are in float32")
    return texts


def degenerate(method: Method) -> list[str]:
    """Warnings about hyperparameters that make the method or its server rule pointless."""
    return list(dict.fromkeys(method.hp.degenerate() + method.rule.hp.degenerate()))


def make_method(settings: Settings) -> Method:
    """Make the method of a cell with its hyperparameters and its server rule.

    Raises:
        UserError: the method is unknown; its aggregation is not a mean that a server rule could replace; its learning
            rate would decay with every upload; or it does not go with the clock's dropouts, `pm_until_broadcast`,
            `unselected`, or the channel's noise.
    """
    kind = METHODS.get(settings.method)
    method: Method = kind(kind.Hyper(**settings.hp))
    if settings.server is not None:
        name = settings.server.name
        rule = SERVER_RULES.get(name)
        if type(method.rule) is not ServerRule:
            raise UserError(f"method {settings.method!r} has a server rule of its own; leave out `server: {name}`")
        if not method.mean_of or kind.aggregate is not Method.aggregate:
            raise UserError(
                f"method {settings.method!r} does not aggregate by a mean, so server rule {name!r} cannot apply"
            )
        method.rule = rule(rule.Hyper(**settings.server.options))
    if settings.lr_decay < 1 and isinstance(method.trigger, Arrivals) and method.trigger.k == 1:
        raise UserError(
            f"lr_decay = {settings.lr_decay:g} counts server versions, and under the rule of {settings.name!r} every "
            "upload makes one: the learning rate would fall with each upload of any client. Leave it at 1 there."
        )
    if settings.clock.dropout and method.everyone:
        raise UserError(f"{settings.method} needs all clients in every round; leave out the clock's `dropout`")
    if settings.pm_until_broadcast and not (isinstance(method.trigger, Everyone) and settings.wait_free):
        raise UserError("`pm_until_broadcast` needs a synchronous server and `wait_free: on`")
    if settings.unselected != "idle" and not isinstance(method.trigger, Everyone):
        raise UserError(
            f"`unselected: {settings.unselected}` needs synchronous rounds, and {settings.name!r} has none: set "
            "`unselected: idle` in its entry of `methods`"
        )
    check_privacy(settings, method)
    return method


def make_selection(settings: Settings, method: Method) -> Selection:
    """Find the selection rule of the cell's clients.

    Raises:
        UserError: the rule is unknown, or the server does not select a round's clients: it starts whoever is idle.
    """
    selection: Selection = SELECTIONS.get(settings.selection)
    if settings.selection != DEFAULT_SELECTION and isinstance(method.trigger, Arrivals):
        raise UserError(
            f"`selection: {settings.selection}` is for rounds, and under the rule of {settings.name!r} clients start "
            f"one by one as others finish. Leave it at {DEFAULT_SELECTION!r} there."
        )
    return selection
