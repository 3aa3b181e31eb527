"""FedIT, FFA-LoRA, FedSA-LoRA, FedEx-LoRA, FedDPA, FlexLoRA, FLoRA and HetLoRA on LoRA's matrices: against plain torch,
and by what their papers claim."""

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from bench.config.checked import conflicts
from bench.errors import UserError
from bench.federation.federation import Federation
from bench.method import Params
from bench.model_call import Forward
from bench.models import adapters
from bench.params import Spec
from bench.rng import generator
from bench.settings import LoraSettings, Settings
from methods.feddpa import by_sample, mixed, mixed_loss
from tests.engine.problems import METHOD_NAMES, QUICK, linear, remarks, run, toy
from tests.methods.images import images
from tests.methods.reference import DATA, LR, PLAIN, SEED, local_batches, local_data

SIZES = [7, 5]
SHARES = [7 / 12, 5 / 12]
RANK, ALPHA = 2, 6.0
SCALE = ALPHA / RANK
A, B, W, HEAD = "inner.lora_a", "inner.lora_b", "inner.weight", "head.weight"
ADAPTERS = {"name": "lora", "rank": RANK, "alpha": ALPHA}
ALONE = {**ADAPTERS, "layers": ["inner"], "train": []}
FAMILY = ["fedavg", "ffa_lora", "fedsa_lora", "fedex_lora", "feddpa", "flexlora", "flora", "hetlora"]
Tensors = dict[str, Tensor]


def federation(method: str, **settings: Any) -> Federation:
    """Two clients with all samples in a batch or less, plain SGD, the linear model with rank 2."""
    return toy(method, **{"sizes": SIZES, "adapters": ADAPTERS, **PLAIN, **settings})


# -- against plain torch ----------------------------------------------------------------------------------------------


def logits(t: Tensors, x: Tensor) -> Tensor:
    """The linear model, its first layer with LoRA."""
    return x @ merged(t).T @ t[HEAD].T


def merged(t: Tensors) -> Tensor:
    """The weight of the first layer with its adapter."""
    return t[W] + SCALE * t[B] @ t[A]


def trained(
    t: Tensors, moving: list[str], round: int, client: int, of: Callable[[Tensors, Tensor], Tensor] = logits
) -> Tensors:
    """The tensors after a client's epoch of SGD on some of them."""
    t = dict(t)
    for x, y in local_batches(SIZES, round, client):
        leaves = {name: t[name].clone().requires_grad_() for name in moving}
        loss = functional.cross_entropy(of({**t, **leaves}, torch.from_numpy(x)), torch.from_numpy(y))
        for name, slope in zip(moving, torch.autograd.grad(loss, list(leaves.values())), strict=True):
            t[name] = t[name] - LR * slope
    return t


def mean(values: list[Tensor]) -> Tensor:
    """Weighted by training samples."""
    return sum(share * value for share, value in zip(SHARES, values, strict=True))  # type: ignore[return-value]


def fedavg(server: Tensors, clients: list[Tensors], round: int) -> Tensors:
    after = [trained(server, [A, B, HEAD], round, i) for i in range(2)]
    return server | {name: mean([t[name] for t in after]) for name in (A, B, HEAD)}


def ffa_lora(server: Tensors, clients: list[Tensors], round: int) -> Tensors:
    after = [trained(server, [B, HEAD], round, i) for i in range(2)]
    return server | {name: mean([t[name] for t in after]) for name in (B, HEAD)}


def fedsa_lora(server: Tensors, clients: list[Tensors], round: int) -> Tensors:
    after = [trained(server | {B: own[B], HEAD: own[HEAD]}, [A, B, HEAD], round, i) for i, own in enumerate(clients)]
    server = server | {A: mean([t[A] for t in after])}
    clients[:] = [t | {A: server[A]} for t in after]
    return server


def fedex_lora(server: Tensors, clients: list[Tensors], round: int) -> Tensors:
    after = [trained(server, [A, B, HEAD], round, i) for i in range(2)]
    new = server | {name: mean([t[name] for t in after]) for name in (A, B, HEAD)}
    return new | {W: server[W] + SCALE * (mean([t[B] @ t[A] for t in after]) - new[B] @ new[A])}


def feddpa(server: Tensors, clients: list[Tensors], round: int) -> Tensors:
    """The global adapter is the first row of A and column of B; the own one the second."""

    def of_both(t: Tensors, x: Tensor) -> Tensor:
        update = 0.5 * server[B][:, :1] @ server[A][:1] + 0.5 * t[B][:, 1:] @ t[A][1:]
        return x @ (server[W] + SCALE * update).T @ server[HEAD].T

    if round == 0:
        server = server | {A: torch.cat([server[A][:1], torch.zeros_like(server[A][1:])])}
    clients[:] = [own | trained(own, [A, B], round, i, of_both) for i, own in enumerate(clients)]
    return fedavg(server, clients, round)


def flexlora(server: Tensors, clients: list[Tensors], round: int) -> Tensors:
    """The second client has rank 1."""
    second = server | {A: server[A] * torch.tensor([[1.0], [0.0]]), B: server[B] * torch.tensor([1.0, 0.0])}
    after = [trained(t, [A, B, HEAD], round, i) for i, t in enumerate((server, second))]
    u, s, v = torch.linalg.svd(mean([t[B] @ t[A] for t in after]))
    sign = v[:2].gather(1, v[:2].abs().argmax(1, keepdim=True)).sign()
    return server | {A: sign * v[:2], B: (u * s)[:, :2] * sign.T, HEAD: mean([t[HEAD] for t in after])}


def flora(server: Tensors, clients: list[Tensors], round: int) -> Tensors:
    """Ranks 2 and 1; A and B are what the clients draw, and are merged into the weight."""
    seed, after = int(generator("server", SEED, "flora", round).integers(2**63)), []
    for i, rank in enumerate((2, 1)):
        a = torch.zeros_like(server[A])
        a[:rank] = torch.from_numpy(np.random.default_rng([seed, i]).uniform(-0.5, 0.5, (rank, IN)))
        after.append(trained(server | {A: a}, [A, B, HEAD], round, i))
    moved = server[W] + SCALE * mean([t[B] @ t[A] for t in after])
    return server | {W: moved, HEAD: mean([t[HEAD] for t in after])}


def hetlora(server: Tensors, clients: list[Tensors], round: int) -> Tensors:
    """Ranks 2 and 1 in the beginning, then as the clients say; the tail of rank 2 is its last row and column."""
    after = []
    for i, own in enumerate(clients):
        rank = int(own.get("rank", torch.tensor(2 - i)))
        t = server | {A: server[A].clone(), B: server[B].clone()}
        t[A][rank:], t[B][:, rank:] = 0, 0
        before = tail_of(t, rank)
        for x, y in local_batches(SIZES, round, i):
            leaves = {name: t[name].clone().requires_grad_() for name in (A, B, HEAD)}
            loss = functional.cross_entropy(logits({**t, **leaves}, torch.from_numpy(x)), torch.from_numpy(y))
            slopes = torch.autograd.grad(loss + HYPER["hetlora"]["lam"] * tail_of(leaves, rank), list(leaves.values()))
            t |= {name: t[name] - LR * slope for name, slope in zip(leaves, slopes, strict=True)}
        if rank == 2 and tail_of(t, rank) < before:
            rank = 1
            t[A][1:], t[B][:, 1:] = 0, 0
        clients[i] = own | {"rank": torch.tensor(rank)}
        after.append(t)
    norms = torch.stack([(t[B] @ t[A]).norm() for t in after])
    shares = norms / norms.sum()
    matrices = {name: shares[0] * after[0][name] + shares[1] * after[1][name] for name in (A, B)}
    return server | matrices | {HEAD: mean([t[HEAD] for t in after])}


def tail_of(t: Tensors, rank: int) -> Tensor:
    """The product of the norms of the second column of B and row of A; 0 for rank 1."""
    return t[B][:, 1:rank].norm() * t[A][1:rank].norm() if rank == 2 else t[A].sum() * 0


HYPER: dict[str, dict[str, Any]] = {
    "flexlora": {"ranks": [2, 1]}, "flora": {"ranks": [2, 1]}, "hetlora": {"ranks": [2, 1], "gamma": 0.6, "lam": 0.3},
}  # fmt: skip


@pytest.mark.parametrize("method", FAMILY)
def test_follows_plain_torch(method: str) -> None:
    """Models after three rounds; FedDPA's own adapters, whose mixture the next test has."""
    ours = federation(method, hp=HYPER.get(method, {}))
    server = {name: tensor.clone() for name, tensor in ours.server.initial_model().tensors().items()}
    clients = [dict(server) for _ in SIZES]
    for round in range(3):
        server = globals()[method](server, clients, round)
        ours.advance()
    if method != "fedsa_lora":
        near(ours.server.state["model"].tensors(), server)
    for i, expected in enumerate(clients if method in ("fedsa_lora", "feddpa") else []):
        state = ours.clients[i].state["own"].tensors()
        near({name: tensor[:, 1:] if name == B and method == "feddpa" else tensor for name, tensor in state.items()},
             {**expected, B: expected[B][:, 1:] if method == "feddpa" else expected[B]})  # fmt: skip


def near(found: Tensors, expected: Tensors) -> None:
    """Equal up to rounding, for the names that were found."""
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-10, atol=1e-12, msg=name)


def wave(*shape: int, start: int) -> Tensor:
    """The sines of consecutive whole numbers."""
    return torch.arange(start, start + math.prod(shape), dtype=torch.float64).sin().view(shape)


def test_feddpa_replays_the_authors_code() -> None:
    """Gradients of the own adapters, and logits of two samples, as computed by the code that the card names.

    That is `Linear` of `peft/tuners/lora/layer.py` twice, with adapters of rank 1 and factor 3: `set_local(["default"],
    [0.3, 0.7])` and `backward` for the gradients, `get_weight(num=5, w=0.7)` and `set_local(["local"], [weight,
    1 - weight])` for the logits. The global adapters of the second layer send no gradient to the first.
    """
    with torch.device("meta"):
        module = linear((4,), 3)
    adapters.insert(module, LoraSettings(name="lora", rank=2, alpha=6.0, train=()), "test_linear")
    values = {W: wave(3, 4, start=0), HEAD: wave(3, 3, start=200)}
    spec = Spec.of("replay", module, values)
    pieces = [wave(*e.shape, start=at + 200 * ("head" in e.name))
              for e in spec.params for at in [50 if e.name.endswith("_a") else 80]]  # fmt: skip
    w = Params(torch.cat([piece.flatten() for piece in pieces]), torch.empty(0, dtype=torch.float64), spec)
    x, y = wave(5, 4, start=400), torch.tensor([0, 1, 2, 0, 1])
    batch, ctx = SimpleNamespace(x=x, y=y, mean=torch.mean), SimpleNamespace(shared=w, hp=SimpleNamespace(weight=0.3))
    gradient = torch.func.grad(lambda own: mixed_loss(Forward(), {"own": w.with_weights(own)}, batch, ctx))(w.weights)
    of_own = w.with_weights(gradient).tensors()
    expected = {
        A: [0.2539842199671927, 0.3126328007459891, 0.08384822629895242, -0.22202602072143393],
        B: [2.3600338113938193, 0.6117001385230726, -1.6990278207060658],
        "head.lora_a": [-0.31277151259175207, 1.3151362573963463, -1.1756725468974882],
        "head.lora_b": [-0.7441717585676388, 0.8276175309237607, -0.08344577235612186],
    }
    near({name: of_own[name][1] if name.endswith("_a") else of_own[name][:, 1] for name in expected},
         {name: torch.tensor(numbers, dtype=torch.float64) for name, numbers in expected.items()})  # fmt: skip
    direction = functional.normalize(Forward(frozen=True).features(mixed(w, w, 1.0), x)).mean(0)
    parts = {"shared": w, "own": w, "direction": direction, "most": 0.7}
    torch.testing.assert_close(
        by_sample(Forward(frozen=True), parts, wave(2, 4, start=500)),
        torch.tensor(
            [
                [6.393532548001527, -2.7560526942286696, -1.5612553872336732],
                [3.30326898230547, -1.5291821749530763, -1.4412328566065988],
            ],
            dtype=torch.float64,
        ),
    )


def test_feddpa_weighs_its_adapters_for_each_sample_by_its_likeness_to_the_training_samples() -> None:
    ours = federation("feddpa", hp={"most": 0.7})
    run(ours, 2)
    x = torch.from_numpy(DATA.x[-9:]).double()
    for i, model in ours.evaluator.personal(2).items():
        own, shared = ours.clients[i].state["own"].tensors(), ours.server.state["model"].tensors()
        alone = x @ (shared[W] + SCALE * own[B][:, 1:] @ own[A][1:]).T
        samples = torch.from_numpy(local_data(SIZES, i)[0]) @ (shared[W] + SCALE * own[B][:, 1:] @ own[A][1:]).T
        cosines = functional.cosine_similarity(alone[:, None], samples[None], dim=2).mean(1)
        expected = []
        for sample, cosine in zip(x, 0.7 * cosines, strict=True):
            update = cosine * shared[B][:, :1] @ shared[A][:1] + (1 - cosine) * own[B][:, 1:] @ own[A][1:]
            expected.append(shared[HEAD] @ (shared[W] + SCALE * update) @ sample)
        torch.testing.assert_close(Forward(frozen=True)(model, x), torch.stack(expected), rtol=1e-9, atol=1e-11)
        with pytest.raises(UserError, match="composed this model of several networks"):
            adapters.merged(model.spec.module)
    assert cosines.std() > 0.01


def local_inputs(client: int) -> Any:
    """All inputs of a client, float64."""
    first = sum(SIZES[:client])
    return DATA.x[first : first + SIZES[client]].astype("float64")


# -- what travels -----------------------------------------------------------------------------------------------------

IN, OUT = 4, 3


@pytest.mark.parametrize(
    ("method", "hp", "down", "up"),
    [
        *((name, {"ranks": [2, 1]}, 1.5 * (IN + OUT), 1.5 * (IN + OUT)) for name in ("flexlora", "hetlora")),
        ("fedavg", {}, RANK * (IN + OUT), RANK * (IN + OUT)),
        ("ffa_lora", {}, RANK * OUT, RANK * OUT),
        ("fedsa_lora", {}, RANK * IN, RANK * IN),
        ("fedex_lora", {}, RANK * (IN + OUT) + IN * OUT, RANK * (IN + OUT)),
        ("feddpa", {}, RANK // 2 * (IN + OUT), RANK // 2 * (IN + OUT)),
        ("flexlora", {}, RANK * (IN + OUT), RANK * (IN + OUT)),
        ("flexlora", {"ranks": [1]}, IN + OUT, IN + OUT),
        ("hetlora", {"gamma": 1.0}, RANK * (IN + OUT), RANK * (IN + OUT)),
        ("hetlora", {"ranks": [1]}, IN + OUT, IN + OUT),
        ("ditto", {}, RANK * (IN + OUT), RANK * (IN + OUT)),
        ("local", {}, 0, 0),
    ],
)
def test_a_matrix_sends_its_rank_times_inputs_and_outputs_and_no_more(
    method: str, hp: dict[str, Any], down: float, up: float
) -> None:
    """Numbers of each of two clients in the second round, of eight bytes; means of both where their ranks differ."""
    ours = federation(method, hp=hp, adapters=ALONE)
    run(ours, 2)
    row = ours.ledger[-1]
    assert (row["down_receivers"], row["up"]) == (2 * 8 * down, 2 * 8 * up)


def test_the_head_travels_where_it_is_trained_and_a_convolution_counts_its_kernel() -> None:
    lora = {"name": "lora", "rank": 3, "layers": ["conv2"]}
    ours = toy("fedavg", data=images(), sizes=[8, 12], model="cnn", model_options={"hidden": 8}, adapters=lora)
    ours.advance()
    assert ours.ledger[-1]["up"] == 2 * 8 * (3 * (32 * 5 * 5 + 64) + 8 * 3 + 3)


# -- ranks and adapters that rest -------------------------------------------------------------------------------------


def test_a_client_of_flora_gets_the_stack_if_it_has_the_weights_and_they_are_the_server_s_either_way() -> None:
    """Three clients, two in a round: who took part in the last round adds the stack to what it has."""
    ours = federation("flora", sizes=[7, 5, 6], participation=0.67, adapters=ALONE)
    known, before, stacks = ours.server.state["model"].tensors()[W], set[int](), list[int]()
    for _ in range(6):
        ours.advance()
        selected = set(ours.server.selected)
        assert all(torch.equal(ours.clients[i].state["base"].tensors()[W], known) for i in selected)
        stacks.append(len(selected & before))
        numbers = stacks[-1] * 2 * RANK * (IN + OUT) + (2 - stacks[-1]) * IN * OUT
        assert ours.ledger[-1]["down_receivers"] == 8 * numbers
        known, before = ours.server.state["model"].tensors()[W], selected
    assert {0, 1} <= set(stacks)


@pytest.mark.parametrize("method", ["flexlora", "flora", "hetlora"])
def test_rows_beyond_a_client_s_rank_stay_zero_under_momentum_decay_and_adam(method: str) -> None:
    for settings in ({"momentum": 0.9, "weight_decay": 0.1}, {"optimizer": {"name": "adam"}, "momentum": 0.0}):
        ours = federation(method, hp={"ranks": [1]}, **settings)
        run(ours, 2)
        tensors = ours.local_models[0].tensors()
        assert not tensors[A][1:].any()
        assert not tensors[B][:, 1:].any()
        assert tensors[B][:, :1].any()


def test_fedex_lora_with_one_client_is_fedavg() -> None:
    ours, other = (federation(method, sizes=[7]) for method in ("fedex_lora", "fedavg"))
    for each in (ours, other):
        run(each, 3)
    near(other.server.state["model"].tensors(), ours.server.state["model"].tensors())


def test_fedsa_lora_that_keeps_nothing_but_b_shares_the_head() -> None:
    ours = federation("fedsa_lora", hp={"personal": []})
    run(ours, 2)
    heads = [w.tensors()[HEAD] for w in ours.evaluator.personal(2).values()]
    assert torch.equal(*heads)


def test_feddpa_without_the_own_adapter_is_the_generic_model() -> None:
    x = torch.from_numpy(DATA.x).double()
    ours = federation("feddpa", hp={"dynamic": False, "weight": 0.0})
    run(ours, 2)
    expected = Forward()(ours.server.state["model"], x)
    for w in ours.evaluator.personal(2).values():
        torch.testing.assert_close(Forward(frozen=True)(w, x), expected, rtol=1e-12, atol=1e-12)
    assert remarks(federation("feddpa", hp={"weight": 0.0}))


def test_clients_of_hetlora_prune_for_good_what_became_smaller_and_never_their_last_row() -> None:
    """Strong pulls shrink the last row as soon as it has numbers; without one it grows here."""
    for lam, rank in ((5.0, 1), (0.0, 3)):
        ours = federation("hetlora", hp={"gamma": 0.7, "lam": lam}, adapters={**ALONE, "rank": 3})
        ranks = [6]
        for _ in range(6):
            ours.advance()
            ranks.append(sum(ours.server.state["ranks"].values()))
            row = ours.ledger[-1]
            assert (row["down_receivers"], row["up"]) == (8 * ranks[-2] * (IN + OUT), 8 * ranks[-1] * (IN + OUT))
        assert (ranks[1], ranks[-1]) == (6, 2 * rank)
        assert ranks == sorted(ranks, reverse=True)


def test_hetlora_weighs_clients_by_their_samples_where_all_products_are_zero() -> None:
    """As after rounds without a step."""
    still = federation("hetlora", epochs=0)
    run(still, 1)
    near(still.server.state["model"].tensors(), still.server.initial_model().tensors())


# -- refusals, and all other methods ----------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [name for name in FAMILY if name != "fedavg"])
def test_a_model_without_lora_is_refused(method: str) -> None:
    for other in (None, {"name": "ia3"}):
        settings = Settings.model_validate({"method": method, "alpha": 1.0, "adapters": other})
        assert list(conflicts(settings)) == ["adapters"]
        assert f"'{method}' needs adapters of the kind lora" in conflicts(settings)["adapters"]
    settings = Settings.model_validate({"method": method, "alpha": 1.0, "adapters": ADAPTERS, "frozen": ["head"]})
    assert "take out `frozen`" in conflicts(settings)["frozen"]


def test_ranks_that_do_not_fit_are_refused() -> None:
    for method in ("flexlora", "flora", "hetlora"):
        for ranks in ([1, 3], [0]):
            with pytest.raises((ValueError, UserError), match="from 1 to the cell's rank 2"):
                federation(method, hp={"ranks": ranks})
    with pytest.raises((ValueError, UserError), match="even rank"):
        federation("feddpa", adapters={**ADAPTERS, "rank": 3})


@pytest.mark.long
@pytest.mark.parametrize("method", METHOD_NAMES)
def test_methods_run_on_adapters_as_on_any_weights(method: str) -> None:
    """Two rounds; nothing but adapters and the head moves."""
    ours = toy(
        method, model="mlp", model_options={"hidden": 5}, hp=QUICK.get(method, {}), adapters={**ADAPTERS, "alpha": 2}
    )
    scores = run(ours, 2)
    assert scores.metrics
