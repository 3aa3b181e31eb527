"""What the rounds in `test_outside.py` leave open of methods that are held against others' code or their equations."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from bench.engine.batches import DrawAddress
from bench.method import Message
from bench.model_call import Forward
from bench.rng import generator
from methods import fedcac
from methods.elastic import elasticity
from methods.pfedsim import similarities
from tests.engine.problems import generic, personal, remarks, run, toy, toy_data
from tests.methods.by_autograd import features
from tests.methods.reference import LR, PLAIN, SEED, descend, gradient, initial, local_batches, near

SIZES = [9, 5]
HEAD = np.arange(21) >= 12  # of `test_linear`
L2G = {"quiz": 0.4, "warmup": 1, "server_lr": 2.0}


def test_apfl_moves_alpha_down_its_slope() -> None:
    """Two clients, two rounds, several steps each, of which the first moves alpha."""
    federation = toy("apfl", sizes=SIZES, hp={"alpha": 0.3, "adaptive": True}, **PLAIN)
    run(federation, 2)
    generic_w = initial(federation)
    own, alpha = [generic_w, generic_w], [0.3, 0.3]
    for t in range(2):
        sent = []
        for i in range(2):
            w, v, a = generic_w, own[i], alpha[i]
            for k, (x, y) in enumerate(local_batches(SIZES, t, i)):
                slope = gradient(a * v + (1 - a) * w, x, y)
                moved = min(1.0, max(0.0, a - LR * float((v - w) @ slope))) if k == 0 else a
                w, v, a = w - LR * gradient(w, x, y), v - LR * a * slope, moved
            own[i], alpha[i] = v, a
            sent.append(w)
        generic_w = np.average(sent, axis=0, weights=SIZES)
    near(generic(federation), generic_w)
    for i in range(2):
        near(personal(federation)[i], alpha[i] * own[i] + (1 - alpha[i]) * generic_w)
        assert alpha[i] != 0.3


def test_apfl_keeps_alpha_in_the_unit_interval() -> None:
    """Also with a learning rate far too large."""
    federation = toy("apfl", lr=5.0, momentum=0.0)
    run(federation, 3)
    alphas = [float(federation.clients[i].state["alpha"]) for i in federation.clients.ids]
    assert all(0 <= a <= 1 for a in alphas)
    assert {0.0, 1.0} & set(alphas)  # some were held back


def test_elastic_aggregation_measures_a_last_batch_of_one_sample() -> None:
    """Nine samples in batches of four, mu 0: the sensitivity is what the last batch says, whose one sample is some."""
    federation = toy("elastic", sizes=[9], hp={"mu": 0.0, "share": 1.0}, model="test_norm", batch_size=4)
    start = federation.server.initial_model()
    federation.advance()
    measured, x = federation.clients[0].state["sensitivity"], torch.from_numpy(toy_data().x[:9]).double()

    def norm(weights: Tensor, sample: Tensor) -> Tensor:
        return Forward()(start.with_weights(weights), sample.unsqueeze(0), stats="frozen").square().sum()

    of_each = [torch.func.grad(norm)(start.weights, sample).abs() for sample in x]
    assert sum(bool(torch.allclose(measured, one, rtol=1e-9, atol=1e-12)) for one in of_each) == 1


def test_elastic_aggregation_takes_steps_of_tau_where_nothing_is_sensitive() -> None:
    w = toy("fedavg", sizes=[4, 4]).server.initial_model()
    torch.testing.assert_close(elasticity(torch.zeros_like(w.weights), w, 0.4), torch.full_like(w.weights, 0.4))


def test_fedala_starts_from_the_mixture_that_was_tested() -> None:
    """Where mixtures are tested, with the weights that the client learns in its next round."""
    federation = toy("fedala", sizes=SIZES, hp={"eta": 2.0, "share": 1.0, "tested": "mixed"}, **PLAIN)
    run(federation, 2)
    tested, received = personal(federation), generic(federation)
    before = [federation.clients[i].state["own"].weights for i in range(2)]
    federation.advance()
    mixes = [federation.clients[i].state["mix"] for i in range(2)]
    for i in range(2):
        torch.testing.assert_close(tested[i], before[i] + (received - before[i]) * mixes[i], rtol=1e-10, atol=1e-12)
    assert any(((mix > 0) & (mix < 1)).any() for mix in mixes)


def test_fedas_traces_a_last_batch_of_one_sample() -> None:
    """Nine samples in batches of four: the last one's gradient is part of the sum, with frozen running statistics."""
    federation = toy("fedas", sizes=[9], hp={"align_epochs": 0}, model="test_norm", batch_size=4)
    sent = []
    aggregate = federation.method.aggregate
    federation.method.aggregate = lambda server, messages: [sent.extend(messages), aggregate(server, messages)][1]  # type: ignore[method-assign]
    federation.advance()
    w, data = federation.clients[0].state["personal"], toy_data()
    trace = 0.0
    for at in (range(4), range(4, 8), range(8, 9)):
        x, y = torch.from_numpy(data.x[list(at)]).double(), torch.from_numpy(data.y[list(at)])

        def mean_loss(weights: Tensor, x: Tensor = x, y: Tensor = y) -> Tensor:
            return functional.cross_entropy(Forward()(w.with_weights(weights), x, stats="frozen"), y)

        trace += float(torch.func.grad(mean_loss)(w.weights).square().sum())
    assert sent[0].weight == pytest.approx(trace, rel=1e-9)


def test_fedavgm_with_nesterov_momentum() -> None:
    """Two clients, three rounds."""
    federation = toy("fedavgm", sizes=SIZES, hp={"beta": 0.6, "server_lr": 0.5, "nesterov": True}, **PLAIN)
    run(federation, 3)
    w, v = initial(federation), np.zeros(21)
    for t in range(3):
        sent = [descend(w, local_batches(SIZES, t, i)) for i in range(2)]
        delta = w - np.average(sent, axis=0, weights=SIZES)
        v = 0.6 * v + delta
        w = w - 0.5 * (delta + 0.6 * v)
    near(generic(federation), w)


def test_fedavgm_has_no_momentum_of_running_statistics() -> None:
    """They are the mean's, however far the weights go."""
    nesterov, fedavg = (
        toy(name, model="test_norm", hp=hp) for name, hp in (("fedavgm", {"nesterov": True}), ("fedavg", {}))
    )
    run(nesterov, 1)
    run(fedavg, 1)
    assert torch.equal(nesterov.server.state["model"].buffers, fedavg.server.state["model"].buffers)
    assert not torch.allclose(generic(nesterov), generic(fedavg))


def test_fedbabu_fine_tunes_at_a_rate_of_its_own() -> None:
    """From the common body under the head of the start."""
    federation = toy("fedbabu", sizes=SIZES, hp={"fine_tune_epochs": 2, "fine_tune_lr": 0.05}, **PLAIN)
    run(federation, 2)
    w = np.concatenate([federation.server.state["body"].weights.numpy(), initial(federation)[12:]])
    for i, found in personal(federation).items():
        near(found, descend(w, local_batches(SIZES, 2, i, epochs=2), lr=0.05))


def test_fedcac_collaborates_less_from_round_to_round_and_not_at_all_from_beta_on() -> None:
    """Overlaps of 1/2, 1 and 1/2: the threshold rises from their mean to their largest."""
    masks = {0: torch.tensor([1, 1, 0, 0]), 1: torch.tensor([1, 0, 1, 0]), 2: torch.tensor([1, 1, 0, 0])}
    method = fedcac.FedCAC(fedcac.Hyper(beta=3))
    thresholds = [method._overlap(masks, round)["threshold"] for round in (1, 2, 3)]
    assert thresholds == pytest.approx([7 / 9, 8 / 9, float("inf")])


@pytest.mark.parametrize("collaborator", ["lowest", "highest", "in_order"])
def test_fedcross_mixes_each_model_with_its_collaborator(collaborator: str) -> None:
    """Three clients, four rounds; who trains which model is dealt anew in each."""
    sizes, alpha = [9, 5, 7], 0.7
    federation = toy("fedcross", sizes=sizes, hp={"alpha": alpha, "collaborator": collaborator}, **PLAIN)
    run(federation, 4)
    models, deals = [initial(federation)] * 3, set()
    for t in range(4):
        deal = generator("server", SEED, "deal", t).permutation(3)
        deals.add(tuple(deal))
        for i in range(3):
            models[deal[i]] = descend(models[deal[i]], local_batches(sizes, t, i))
        crossed = []
        for k, w in enumerate(models):
            others = [j for j in range(3) if j != k]
            cosine = {j: w @ models[j] / np.linalg.norm(w) / np.linalg.norm(models[j]) for j in others}
            by = {"lowest": min(others, key=lambda j: cosine[j]), "highest": max(others, key=lambda j: cosine[j])}
            crossed.append(alpha * w + (1 - alpha) * models[by.get(collaborator, (k + 1 + t % 2) % 3)])
        models = crossed
    assert len(deals) > 1
    near(generic(federation), np.mean(models, axis=0))


def test_fedcross_of_one_client_is_local() -> None:
    """One client has one model, and no collaborator."""
    federation, local = toy("fedcross", sizes=[9]), toy("local", sizes=[9])
    run(federation, 3)
    run(local, 3)
    near(generic(federation), local.clients[0].state["personal"].weights.numpy())


def test_fedcross_has_as_many_models_as_clients_in_a_round() -> None:
    """Every one of them is trained once a round, and all of them change hands."""
    federation = toy("fedcross", sizes=[9, 5, 7, 4], participation=0.5)
    run(federation, 3)
    assert len(federation.server.state["models"]) == 2
    row = federation.ledger[-1]
    assert row["up"] == row["down_receivers"] == row["down_distinct"] == 2 * 8 * 21


def test_feddbe_tests_a_client_by_the_generic_model_with_its_mean() -> None:
    federation = toy("feddbe", sizes=SIZES, hp={"mean_lr": 0.05}, **PLAIN)
    scores = run(federation, 3)
    w, data, losses = generic(federation), toy_data(), []
    for i in range(2):
        mean, at = federation.clients[i].state["mean"], federation.device_data.partition.test[i]
        assert mean.any()
        logits = (features(w, torch.tensor(data.x[at]).double()) + mean) @ w[12:].view(3, 3).T
        losses.append(float(functional.cross_entropy(logits, torch.tensor(data.y[at]))))
    row = next(r for r in scores.metrics if (r["metric"], r["mean"], r["quantity"]) == ("pm", "equal", "loss"))
    np.testing.assert_allclose(row["value"], np.mean(losses), rtol=1e-10)


def test_fedl2g_models_wait_for_the_vectors() -> None:
    federation = toy("fedl2g", sizes=[9, 7], hp=L2G | {"warmup": 2}, **PLAIN)
    vectors = federation.server.state["vectors"]
    run(federation, 2)
    assert not torch.equal(federation.server.state["vectors"], vectors)
    for w in personal(federation).values():
        near(w, initial(federation))
    run(federation, 1)
    assert not torch.equal(personal(federation)[0], torch.tensor(initial(federation)))


@pytest.mark.parametrize(("clip", "scale"), [(100.0, 1.0), (1.0, 10**-0.5)])
def test_fedl2g_moves_a_vector_by_the_clients_that_have_its_class(clip: float, scale: float) -> None:
    """The mean over those whose gradient is not 0, clipped as a whole; a vector that nobody looked at stays."""
    federation = toy("fedl2g", sizes=[9, 7], hp=L2G | {"clip": clip})
    before = federation.server.state["vectors"]
    rows = ([[1.0, 0, 0], [3, 3, 0], [0, 0, 0]], [[0.0, 0, 0], [1, 1, 2], [0, 0, 0]])
    messages = [Message(i, {"slopes": torch.tensor(r, dtype=torch.float64)}, 1.0, 0) for i, r in enumerate(rows)]
    federation.method.aggregate(federation.server, messages)
    expected = scale * torch.tensor([[1.0, 0, 0], [2, 2, 1], [0, 0, 0]], dtype=torch.float64)
    torch.testing.assert_close(before - federation.server.state["vectors"], 2 * expected, rtol=1e-6, atol=0)


def test_fedlc_of_equal_counts_is_fedavg() -> None:
    """A margin that all classes share is none."""
    federation, fedavg = toy("fedlc", sizes=[6], **PLAIN), toy("fedavg", sizes=[6], **PLAIN)
    for one in (federation, fedavg):
        one.clients[0].label_counts = torch.tensor([2, 2, 2])
    run(federation, 2)
    run(fedavg, 2)
    torch.testing.assert_close(generic(federation), generic(fedavg), rtol=1e-10, atol=1e-12)


def test_fedlc_does_not_push_an_absent_class_away() -> None:
    """A client of one class: its margin to the others is 100 tau, and it teaches nothing."""
    federation = toy("fedlc", sizes=[1], **PLAIN)
    run(federation, 2)
    torch.testing.assert_close(generic(federation), federation.server.initial_model().weights, rtol=0, atol=1e-12)


def test_fedmtl_with_the_laplacian_is_mrmtl_step_by_step() -> None:
    """With one step in a round, where the mean is as old as the model, and clients of equal sizes."""
    settings = {"sizes": [6, 6, 6], "batch_size": 6, "epochs": 1, "momentum": 0.0}
    federation = toy("fedmtl", hp={"lam": 0.5, "relation": "laplacian"}, **settings)
    other = toy("mrmtl", hp={"lam": 0.5}, **settings)
    run(federation, 4)
    run(other, 4)
    for i, w in personal(federation).items():
        near(w, personal(other)[i].numpy())


def test_fedphp_keeps_a_share_of_the_private_model_that_rises_up_to_mu() -> None:
    """Over two of four rounds, at a client whose trained model is the mean."""
    federation = toy("fedphp", sizes=[9], hp={"mu": 0.8, "rounds": 2}, **PLAIN)
    private = initial(federation)
    for keep in (0.0, 0.4, 0.8, 0.8):
        run(federation, 1)
        private = (1 - keep) * generic(federation).numpy() + keep * private
        near(personal(federation)[0], private)


def test_fedrep_without_body_epochs_is_a_linear_probe() -> None:
    """The body keeps its weights and its running statistics, and heads alone learn; the cell says so."""
    federation = toy("fedrep", model="test_norm", hp={"body_epochs": 0})
    run(federation, 2)
    start, body = federation.server.initial_model().without("head"), federation.server.state["body"]
    torch.testing.assert_close(body.weights, start.weights, rtol=0, atol=1e-14)
    torch.testing.assert_close(body.buffers, start.buffers, rtol=0, atol=1e-14)
    assert remarks(federation)
    assert not remarks(toy("fedrep"))


def test_fedrep_trains_a_head_alone_for_new_clients() -> None:
    federation = toy("fedrep", sizes=SIZES, **PLAIN)
    run(federation, 2)
    down = federation.clients.down(1)
    program = federation.method.adapt(federation.server, federation.clients.copy(1), down, 4)
    adapted = federation.engine.finish(1, program, DrawAddress(3, 7, 1))
    start = np.concatenate([down["body"].weights.numpy(), federation.clients[1].state["head"].weights.numpy()])
    for x, y in local_batches(SIZES, 7, 1, epochs=4):
        start = start - LR * HEAD * gradient(start, x, y)
    near(adapted.weights, start)


def test_pfedsim_takes_equal_heads_and_no_opposite_ones() -> None:
    """An equal head has a large weight and not all of it; all rows sum to 1."""
    shares = similarities(torch.tensor([[1.0, 2.0], [2.0, 4.0], [-1.0, -2.0]], dtype=torch.float64))
    torch.testing.assert_close(shares.sum(1), torch.ones(3, dtype=torch.float64))
    assert 0.9 < shares[0, 1] < 1
    assert shares[0, 2] == 0
    assert shares[2, 2] == 1
