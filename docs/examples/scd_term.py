"""How large is SCD's spectral term? Its gradient against that of the cross-entropy, over a real run on the digits.

For each normalisation: SCD runs with its default lambdas, and at some rounds the gradients of the cross-entropy and of
D (lambda = 1) are taken at every client's generic model against the teacher of the next round, as in its first step
there.
Prints a Markdown table; docs/methods/scd.md shows it. Takes about a minute.
"""

from pathlib import Path
from typing import Any

import torch

from bench.federation.federation import Diverged, Federation
from bench.model_call import Forward
from bench.plugin import DATASETS
from bench.samples.division import make_partition
from bench.settings import Settings
from methods.scd import Hyper
from methods.spectrum import divergence, spectrum

ROUNDS = (1, 5, 20)
READINGS = [("gen_kl", "ortho"), ("simplex", "backward"), ("mean", "backward"), ("gen_kl", "backward")]
READINGS += [("none", "ortho"), ("none", "backward")]


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    print("| normalise, DFT | round | CE gradient | D | D gradient | ratio at lambda_g = 0.05 | GM after 20 rounds |")
    print("|---|---|---|---|---|---|---|")
    for normalise, norm in READINGS:
        report(normalise, norm)


def report(normalise: str, norm: str) -> None:
    """One run; the means over clients."""
    federation = digits("scd", Hyper(normalise=normalise, fft_norm=norm).model_dump(), alpha=0.1, rounds=max(ROUNDS))
    lines: list[list[float]] = []
    final = "diverged"
    try:
        for version in range(1, max(ROUNDS) + 1):
            federation.advance()
            if version in ROUNDS:
                lines.append([version, *sizes(federation)])
        final = f"{accuracy(federation, 'global'):.3f}"
    except Diverged as error:
        final = f"diverged ({error})"
    for version, ce, d, spectral in lines:
        ratio = 0.05 * spectral / ce
        print(f"| {normalise}, {norm} | {version:.0f} | {ce:.3g} | {d:.3g} | {spectral:.3g} | {ratio:.2g} | {final} |")
    if not lines:
        print(f"| {normalise}, {norm} | 1 | – | – | – | – | {final} |")


def digits(method: str, hp: dict[str, Any], *, alpha: float, rounds: int, seed: int = 0) -> Federation:
    """20 clients with the digits and an MLP of 4,810 parameters, before the first round."""
    settings = Settings(
        method=method, hp=hp, alpha=alpha, lr=0.05, momentum=0.5, rounds=rounds, seed=seed,
        model="mlp", model_options={"hidden": 64},
    )  # fmt: skip
    data = DATASETS.get("digits")(data_root=Path("."), download=False)
    partition = make_partition(
        data, "dirichlet", clients=20, alpha=alpha, seed=seed, protocol="honest", validation_share=0.2, options={}
    )
    return Federation(settings, dataset=data, partition=partition, public=None)


def accuracy(federation: Federation, on: str) -> float:
    """Now, on test data: of the generic model (`global`), or of the personalized models on their clients' (`local`)."""
    wanted = {"on": on, "split": "test", "quantity": "accuracy", "metric": "gm" if on == "global" else "pm"}
    rows = [m for m in federation.evaluate().metrics if all(m[key] == value for key, value in wanted.items())]
    return float(next(m["value"] for m in rows if m["mean"] in ("", "train_size")))


def sizes(federation: Federation, phase: str = "generic") -> list[float]:
    """Norm of the cross-entropy gradient, D, and norm of its gradient: means over clients.

    The generic phase begins with the server's model and the client's personalized one as the teacher; for the personal
    phase they change places (its teacher is really the client's own update of the server's model).
    """
    o = federation.method.hp
    rows = []
    for i in federation.clients.ids:
        generic, personal = federation.server.state["model"], federation.clients[i].state["personal"]
        start, other, tau = (generic, personal, o.tau) if phase == "generic" else (personal, generic, 1.0)
        teacher = spectrum(other, tau, o)
        x, y = federation.device_data.local.take(torch.from_numpy(federation.device_data.positions(i, "train")))
        w = start.weights.clone().requires_grad_()
        ce = torch.nn.functional.cross_entropy(Forward()(start.with_weights(w), x), y)
        d = divergence(start.with_weights(w), teacher, tau, o)
        norms = [float(torch.autograd.grad(value, w)[0].norm()) for value in (ce, d)]
        rows.append([norms[0], float(d.detach()), norms[1]])
    return torch.tensor(rows).mean(0).tolist()


if __name__ == "__main__":
    main()
