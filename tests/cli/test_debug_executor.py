"""`--executor debug` names what is not finite: round, client, step, layer (its bytes: engine/test_debug.py)."""

from pathlib import Path
from typing import Any

import pytest
import torch

from bench.method import (
    METHODS,
    Batch,
    Client,
    Do,
    Method,
    Program,
    Server,
    State,
    Train,
    Upload,
    Values,
    cross_entropy,
)
from bench.runs.cell import run_cell
from bench.runs.cell_options import Options
from tests.runs.conftest import Cell

ROUND, CLIENT, STEP, LAYER = 2, 3, 4, "body.fc1.bias"  # counted as people count; clients from 0


def sick_loss(model: Any, values: Values, batch: Batch, ctx: Any) -> Any:
    """Cross-entropy, and at that step the layer times nan."""
    factor = torch.where((ctx.sick > 0) & (batch.step == STEP - 1), torch.nan, 0.0)
    return cross_entropy(model, values, batch, ctx) + factor * values["w"].part(LAYER).weights.sum()


def careful_step(do: Do, values: Values, batch: Batch, ctx: Any) -> Values:
    """A gradient step in which what is no number counts as 0, so that all weights and losses stay finite."""
    gradients, values = do.gradient(sick_loss, values, batch, ctx)
    gradients = {name: g.nan_to_num(0.0) for name, g in gradients.items()}
    _, values = do.gradient(cross_entropy, values, batch, ctx)
    return do.update(values, gradients)


@METHODS.register("sick")
class Sick(Method):
    """FedAvg whose loss is no number for one client, in one round, at one step and because of one layer."""

    mean_of = ("model",)

    def broadcast(self, server: Server, client: Client) -> State:
        return {"model": server.state["model"], "sick": float(server.round + 1 == ROUND and client.id == CLIENT)}

    def client_round(self, client: Client, down: State) -> Program:
        trained = yield self.train({"w": down["model"]}, {"sick": torch.tensor(down["sick"])})
        yield Upload({"model": trained["w"]})

    def train(self, w: dict[str, Any], context: dict[str, Any]) -> Train:
        return Train(w, loss=sick_loss, steps=6, context=context)


@METHODS.register("sick_hidden")
class Hidden(Sick):
    """The same, and it hides it."""

    def train(self, w: dict[str, Any], context: dict[str, Any]) -> Train:
        return Train(w, step=careful_step, steps=6, context=context)


ENDS = f"round {ROUND}: part 'w' of client {CLIENT} is not finite after training"
PLACE = f"at step {STEP} of 6"
WHAT = f"the loss (nan), gradient of {LAYER} in 'w'"
HIDDEN = f"round {ROUND}: client {CLIENT} was not finite {PLACE} (careful_step): {WHAT}"


@pytest.mark.parametrize(
    ("method", "executor", "state", "reason", "warnings"),
    [
        ("sick", "sequential", "diverged", ENDS, []),
        ("sick", "debug", "diverged", f"{ENDS}; first {PLACE} (sick_loss): {WHAT}", []),
        ("sick_hidden", "sequential", "done", "", []),
        ("sick_hidden", "debug", "done", "", [HIDDEN]),
    ],
)
def test_names_the_round_client_step_and_layer(
    cell: Cell, tmp_path: Path, method: str, executor: str, state: str, reason: str, warnings: list[str]
) -> None:
    """Of a weight that ends the cell, and of a gradient that a method hides."""
    settings = cell(method=method, model="mlp", model_options={"hidden": 8}, rounds=3)
    status = run_cell(settings, tmp_path / "cell", Options.model_validate({"device": "cpu", "executor": executor}))
    assert (status.state, status.reason, status.warnings) == (state, reason, warnings)
