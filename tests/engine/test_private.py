"""DP-SGD against gradients that are taken one by one, and what of it is counted, refused and kept."""

from typing import Any

import pytest
import torch
from torch import Tensor

from bench.engine.batches import Batches, DrawAddress, draw_poisson
from bench.engine.private import noise_of
from bench.errors import UserError
from bench.federation.federation import Federation
from bench.federation.privacy import epsilon
from bench.method import METHODS, Client, Method, Program, State, Train, Upload, cross_entropy
from bench.model_call import Forward
from bench.requests import Feed
from bench.settings import Settings
from tests.engine.problems import EVERY_METHOD, assert_same, everything, generic, run, toy, toy_data

NOTHING = {"norm": 1e9, "noise": 0.0}
NOISY = {"norm": 0.5, "noise": 1.0}
WHOLE: dict[str, Any] = {"batch_size": 50}


def by_hand(federation: Federation, n: int, steps: int, norm: float, noise: float) -> Tensor:
    """The weights of a single client after some steps of plain SGD, sample by sample."""
    data, model = toy_data(), federation.server.initial_model()
    w, d = model.weights.clone(), model.weights.numel()
    batches = draw_poisson(Feed(), n, 4, steps, DrawAddress(3, 0, 0, training=1))
    draws = torch.tensor(noise_of(DrawAddress(3, 0, 0, training=1), "w", d, steps))
    for step in range(steps):
        total = noise * norm * draws[step]
        chosen = batches.positions[step][: batches.sizes[step]]
        for sample in chosen:
            leaf = w.clone().requires_grad_()
            x, y = torch.tensor(data.x[sample], dtype=torch.float64), torch.tensor([int(data.y[sample])])
            torch.nn.functional.cross_entropy(Forward()(model.with_weights(leaf), x[None], "frozen"), y).backward()
            assert leaf.grad is not None
            total = total + leaf.grad * min(1.0, norm / float(leaf.grad.norm()))
        w = w - 0.1 * total / 4
    return w


@pytest.mark.parametrize("executor", ["sequential", "cohort"])
@pytest.mark.parametrize("noise", [pytest.param(0.0, marks=pytest.mark.long), 2.0])
def test_steps_by_hand(executor: str, noise: float) -> None:
    """Two epochs of 9 samples in three batches each, of 4 samples on average; some have none, some more than eight."""
    options: dict[str, Any] = {"sizes": [9], "momentum": 0.0, "executor": executor}
    federation = toy("fedavg", dp_sgd={"norm": 0.3, "noise": noise}, **options)
    federation.advance()
    torch.testing.assert_close(generic(federation), by_hand(federation, 9, 6, 0.3, noise), rtol=0, atol=1e-12)


MIXING = {
    "fedproto": "means_loss", "fedas": "alignment_loss", "fedcp": "separating_loss", "fedkd": "mutual_loss",
    "fedphp": "inherited_loss", "floco": "drawn_loss", "floco_plus": "drawn_loss", "flute": "whole_loss",
}  # fmt: skip


def tried(method: str, **settings: Any) -> Federation | str:
    """A federation after two rounds, or with what words it is refused."""
    try:
        federation = toy(method, **settings)
        run(federation, 2)
    except UserError as error:
        return str(error)
    return federation


@pytest.mark.parametrize("method", EVERY_METHOD)
def test_every_method_is_the_plain_cell_without_noise_and_trains_with_noise_or_is_refused(method: str) -> None:
    """With a large norm, where all samples are in each batch; but for rounding, as sums are taken in another order. In
    float32, which people have, rounding is not taken for mixing."""
    private = tried(method, dp_sgd=NOTHING, **({} if method in MIXING else WHOLE))
    for outcome in (private, tried(method, dp_sgd=NOTHING, dtype="float32")):
        assert not isinstance(outcome, str) or outcome.startswith("dp_sgd: ")
        assert ("mixes the samples of a batch" in str(outcome)) == (method in MIXING)
    if isinstance(private, str):
        return
    plain = toy(method, **WHOLE)
    run(plain, 2)
    if method != "fedgen":  # its samples meet other draws in another order
        assert_same(everything(private), everything(plain), 1e-9)
    assert private.privacy()[0]["epsilon"] is None
    noisy, plain = (toy(method, momentum=0.0, lr=0.01, dp_sgd=dp_sgd) for dp_sgd in (NOISY, None))
    noisy.advance()
    plain.advance()
    assert noisy.warnings == plain.warnings
    own = any(noisy.engine.private.steps.values()) or noisy.engine.private.looks
    assert own, "a method whose clients neither train nor look at their samples"


@pytest.mark.parametrize("executor", ["sequential", "cohort"])
@pytest.mark.parametrize(
    "method", [pytest.param(name, marks=[pytest.mark.long] if name != "fedproto" else []) for name in MIXING]
)
def test_a_loss_that_mixes_the_samples_of_a_batch_is_refused(method: str, executor: str) -> None:
    """Class means, discrepancies, sums over a batch, one draw for all: samples one by one give another loss.

    FedProto knows no prototypes in its first round. FedAS' Fisher weights, which are a step of its own, are refused
    anyway.
    """
    options: dict[str, Any] = {"executor": executor, **({"hp": {"fisher": False}} if method == "fedas" else {})}
    assert f"dp_sgd: {MIXING[method]} is " in str(tried(method, dp_sgd=NOTHING, **options))


@pytest.mark.long
def test_steps_are_recorded() -> None:
    """A recording is taken only if it gives the bytes of a step that is not (`bench.engine.backends`)."""
    federation = toy("fedavg", dp_sgd=NOISY, epochs=8, dtype="float32")
    run(federation, 6)
    assert federation.engine.calls[federation.engine.backend] > 0
    assert federation.engine.backend != "eager"
    assert federation.warnings == []


@pytest.mark.long
def test_steps_are_counted_for_each_client_and_sampling_rate() -> None:
    """Ditto trains twice a round: 13 samples are 4 batches of 4, 2 epochs each; 1 sample is a whole batch."""
    federation = toy("ditto", dp_sgd=NOISY)
    run(federation, 3)
    steps = {client: dict(rates) for client, rates in federation.engine.private.steps.items()}
    assert steps[0] == {4 / 13: 3 * 2 * 2 * 4}
    assert steps[2] == {1.0: 3 * 2 * 2}
    (statement,) = federation.privacy()
    worth = [epsilon([(1.0, rate, n) for rate, n in rates.items()], 1e-5) for rates in steps.values()]
    assert statement["epsilon"] == pytest.approx(max(worth), abs=1e-4)
    assert statement["protects"] == "sample"


@pytest.mark.parametrize(
    ("normalise", "text"), [("pooled", "deviation of all clients' samples"), ("per_client", "deviation of each client")]
)
def test_statistics_of_samples_are_not_protected(normalise: str, text: str) -> None:
    (statement,) = toy("fedavg", dp_sgd=NOISY, normalise=normalise).privacy()
    assert text in "; ".join(statement["unprotected"])
    assert "deviation" not in str(toy("fedavg", dp_sgd=NOISY).privacy())


@METHODS.register("test_memory")
class Memory(Method):
    """FedAvg on what a client had before its data changed."""

    mean_of = ("model",)

    def client_round(self, client: Client, down: State) -> Program:
        trained = yield Train({"w": down["model"]}, loss=cross_entropy, feed=Feed("earlier"), steps=2)
        yield Upload({"model": trained["w"]})
        return trained["w"]


def test_earlier_samples_are_protected_too() -> None:
    settings = Settings(
        method="test_memory", clients=3, alpha=1.0, model="logistic", dp_sgd={"noise": 1.0},
        timeline=[{"round": 1, "shifts": [{"name": "concept_shift", "clusters": 2}]}],
    )  # fmt: skip
    federation = Federation.of(settings)
    federation.enter(2)
    federation.version = 1
    federation.advance()
    assert all(sum(rates.values()) == 2 for rates in federation.engine.private.steps.values())
    assert len(federation.engine.private.steps) == 3


def _there(batches: Batches, n: int) -> Any:
    """Whether each sample is in each batch, `[steps][samples]`; padding is not."""
    rows = zip(batches.positions.tolist(), batches.sizes.tolist(), strict=True)
    chosen = [set(row[:size]) for row, size in rows]
    assert all(len(of) == size for of, size in zip(chosen, batches.sizes, strict=True)), "none is there twice"
    return [[i in of for i in range(n)] for of in chosen]


@METHODS.register("test_twice")
class Twice(Method):
    """Two trainings from the same model on the same batches."""

    mean_of = ("model",)

    def client_round(self, client: Client, down: State) -> Program:
        first = yield Train({"w": down["model"]}, loss=cross_entropy, steps=1)
        second = yield Train({"w": down["model"]}, loss=cross_entropy, steps=1)
        client.state["difference"] = first["w"].weights - second["w"].weights
        yield Upload({"model": first["w"]})
        return first["w"]

    def personal(self, server: Any, client: Client, down: State) -> Program:
        trained = yield Train({"w": down["model"]}, loss=cross_entropy, steps=1)
        return trained["w"]


def test_trainings_share_no_noise_and_with_noise_no_batches() -> None:
    """Else the difference of two would be free of it, and a sample would be in the batches of both or of none. Nor does
    an evaluation share them with the next round."""
    plain, noisy = toy("test_twice"), toy("test_twice", dp_sgd=NOISY)
    plain.advance()
    noisy.advance()
    assert not any(state["difference"].any() for state in plain.clients.states().values())
    assert all(state["difference"].all() for state in noisy.clients.states().values())
    addresses = [DrawAddress(3, 0, 0, purpose, training) for purpose in ("", "personal") for training in (1, 2)]
    there = torch.tensor([_there(draw_poisson(Feed(), 20, 5, 2000, at), 20) for at in addresses], dtype=torch.float64)
    torch.testing.assert_close(there.mean((1, 2)), torch.full((4,), 0.25, dtype=torch.float64), rtol=0, atol=0.01)
    torch.testing.assert_close(torch.corrcoef(there.flatten(1)), torch.eye(4, dtype=torch.float64), rtol=0, atol=0.02)
    torch.testing.assert_close(torch.corrcoef(there[0].T), torch.eye(20, dtype=torch.float64), rtol=0, atol=0.1)
    evaluated = noisy.evaluator.personal(noisy.version)
    flights = noisy.start(noisy.clients.ids)
    started = {f.client.id: f.messages[0][1]["model"].weights for f in flights}
    assert all((evaluated[i].weights != started[i]).all() for i in started)


@pytest.mark.parametrize(
    ("method", "settings", "problem"),
    [
        ("fedavg", {"model": "test_norm"}, "a network has batch statistics"),
        ("scaffold", {}, "is a step of the method's own and no plain gradient step"),
        ("centralized", {}, "trains on the samples of all clients"),
        ("fedem", {}, "dp_sgd: "),
    ],
)
def test_what_is_no_mean_of_gradients_is_refused(method: str, settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(UserError, match="dp_sgd: ") as error:
        toy(method, dp_sgd=NOISY, **settings).advance()
    assert problem in str(error.value)
