"""The models of a server version, and their outputs on the samples that they are scored on."""

from dataclasses import replace

import torch

from bench.engine.batches import DrawAddress
from bench.engine.device_data import SERVER
from bench.errors import UserError
from bench.federation.cell import CellContext
from bench.federation.participants import as_model, mean_of_models
from bench.federation.scores import Evaluation, Outputs, Scorer, Scorers
from bench.method import Program, Train, cross_entropy
from bench.params import Params


class Evaluator:
    """Asks the method for its models, and these for their outputs."""

    def __init__(self, cell: CellContext) -> None:
        self._cell = cell
        self._method, self._server, self._clients, self._engine = cell.method, cell.server, cell.clients, cell.engine
        self.meet_change()

    def meet_change(self) -> None:
        """Score on the samples that the clients have now."""
        cell, data = self._cell, self._cell.device_data
        ids, labels, further = self._clients.ids, data.local.y, cell.settings.further_metrics
        self.scorers = Scorers(labels, data.changes, ids, cell.new, further, data.stage, cell.malicious)

    def outputs(self, version: int, local: dict[int, Params]) -> Evaluation:
        """Compute the outputs of generic, personalized and `local` models (right after local training), unscored."""
        personal = self.personal(version) if self._method.trains != "gm" else {}
        generic = self.generic(version, personal)
        evaluation = Evaluation(generic=generic, personal=personal)
        names = ("gm", "pm") if self._method.trains == "gm" else ("gm",)
        by_client = {name: models for name, models in (("pm", personal), ("lm", local)) if models}
        evaluation.outputs += self._outputs(generic, names, by_client, self.scorers.trained)
        if self._cell.new and version == self._cell.settings.rounds:
            evaluation.outputs += self._outputs_of_newcomers(version, generic)
        for stage in self.scorers.compared(version, self._cell.settings.rounds):
            scorer = self.scorers.stage(stage)  # of clients that are there now and were there then
            models = {i: w for i, w in personal.items() if i in scorer.own}
            of_stage = self._outputs(generic, names, {"pm": models} if models else {}, scorer)
            evaluation.outputs += [replace(outputs, stage=stage) for outputs in of_stage]
        return evaluation

    def _outputs(
        self,
        generic: Params | None,
        names: tuple[str, ...],
        by_client: dict[str, dict[int, Params]],
        scorer: Scorer,
    ) -> list[Outputs]:
        """Compute outputs of all models together; none where there is no model.

        Args:
            generic: one model for all, scored as each of `names`.
            by_client: by name of the metric, models of clients, each scored on its client's samples.
        """
        clients = {name: sorted(models) for name, models in by_client.items()}
        tasks = [] if generic is None else [(SERVER, generic, scorer.needed)]
        tasks += [(i, by_client[name][i], scorer.own[i]) for name, ids in clients.items() for i in ids]
        if not tasks:
            return []
        owners = [owner for owner, _, _ in tasks]
        logits = torch.cat(self._engine.outputs("train", [(w, at) for _, w, at in tasks], owners=owners))
        return [Outputs(() if generic is None else names, clients, logits)]

    def personal(self, version: int, ids: list[int] | None = None) -> dict[int, Params]:
        """Make the personalized models of the clients `ids`, by client; None: of all clients."""
        ids = self._clients.ids if ids is None else ids
        programs = []
        for i in ids:
            program = self._method.personal(self._server, self._clients.copy(i), self._clients.down(i))
            programs.append((i, program, self._address(version, i)))
        name = f"{type(self._method).__name__}.personal (trains = {self._method.trains!r})"
        models = [as_model(model, name) for model in self._engine.finish_all(programs)]
        return dict(zip(ids, models, strict=True))

    def generic(self, version: int, personal: dict[int, Params]) -> Params | None:
        """Make the generic model; the mean of the personalized ones where the method trains none."""
        if self._method.trains == "pm":
            return mean_of_models(personal, self._server.sizes)
        program = self._method.generic(self._server)
        model = self._engine.finish(SERVER, program, self._address(version, SERVER))
        if model is None and self._method.trains != "gm":
            return None
        return self._clients.mean_buffers(as_model(model, f"{type(self._method).__name__}.generic"))

    def _outputs_of_newcomers(self, version: int, generic: Params | None) -> list[Outputs]:
        """Adapt to clients that took no part in training, for some epochs: metrics `new0`, `new1` and so on."""
        from_generic = self._cell.settings.new_client_start == "generic"
        if from_generic and generic is None:
            raise UserError("`new_client_start: generic` needs one architecture for all: there is no generic model")
        outputs = []
        for epochs in self._cell.settings.new_client_epochs:
            programs = []
            for i in self._cell.new:
                program = (
                    _fine_tuned(generic, epochs)
                    if from_generic and generic is not None
                    else self._method.adapt(self._server, self._clients.copy(i), self._clients.down(i), epochs)
                )
                programs.append((i, program, self._address(version, i, f"adapt {epochs}")))
            name = f"{type(self._method).__name__}.adapt"
            adapted = [as_model(model, name) for model in self._engine.finish_all(programs)]
            models = dict(zip(self._cell.new, adapted, strict=True))
            of_new = self._outputs(None, (), {f"new{epochs}": models}, self.scorers.new)
            outputs += [replace(output, new=True) for output in of_new]
        return outputs

    def _address(self, version: int, owner: int, purpose: str = "evaluate") -> DrawAddress:
        return DrawAddress(self._cell.settings.seed, version, owner, purpose)


def _fine_tuned(start: Params, epochs: int) -> Program:
    trained = yield Train({"w": start}, loss=cross_entropy, epochs=epochs)
    return trained["w"]
