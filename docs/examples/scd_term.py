"""How large is SCD's spectral term? Its gradient against that of the cross-entropy, over a real run on the digits.

For each normalisation: SCD runs with its default lambdas, and at some rounds the gradients of the cross-entropy and of
D (lambda = 1) are taken at every client's generic model against the teacher of the next round, as in its first step
there.
Prints a Markdown table; docs/methods/scd.md shows it. Takes about a minute.
"""

from pathlib import Path

import torch

from bench.federation.federation import Diverged, Federation
from bench.forward import Forward
from bench.plugin import DATASETS
from bench.settings import Settings
from datasets.partitions import make_partition
from methods.scd import Hyper
from methods.spectrum import divergence, spectrum

ROUNDS = (1, 5, 20)
READINGS = [("gen_kl", "ortho"), ("simplex", "backward"), ("mean", "backward"), ("gen_kl", "backward")]
READINGS += [("none", "ortho"), ("none", "backward")]
KIND = ("global", "test", "accuracy")


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    print("| normalise, DFT | round | CE gradient | D | D gradient | ratio at lambda_g = 0.05 | GM after 20 rounds |")
    print("|---|---|---|---|---|---|---|")
    for normalise, norm in READINGS:
        report(normalise, norm)


def report(normalise: str, norm: str) -> None:
    """One run; the means over clients."""
    hp = Hyper(normalise=normalise, fft_norm=norm).model_dump()
    settings = Settings(
        method="scd", hp=hp, alpha=0.1, lr=0.05, momentum=0.5, rounds=max(ROUNDS),
        model="mlp", model_options={"hidden": 64},
    )  # fmt: skip
    data = DATASETS.get("digits")(data_root=Path("."), download=False)
    partition = make_partition(
        data, "dirichlet", clients=20, alpha=0.1, seed=0, protocol="honest", validation_share=0.2, options={}
    )
    federation = Federation(settings, data, partition)
    lines: list[list[float]] = []
    final = "diverged"
    try:
        for version in range(1, max(ROUNDS) + 1):
            federation.advance()
            if version in ROUNDS:
                lines.append([version, *sizes(federation)])
        scores = federation.evaluate().metrics
        final = next(f"{m['value']:.3f}" for m in scores if (m["on"], m["split"], m["quantity"]) == KIND)
    except Diverged as error:
        final = f"diverged ({error})"
    for version, ce, d, spectral in lines:
        ratio = 0.05 * spectral / ce
        print(f"| {normalise}, {norm} | {version:.0f} | {ce:.3g} | {d:.3g} | {spectral:.3g} | {ratio:.2g} | {final} |")
    if not lines:
        print(f"| {normalise}, {norm} | 1 | – | – | – | – | {final} |")


def sizes(federation: Federation) -> list[float]:
    """Norm of the cross-entropy gradient, D, and norm of its gradient: means over clients."""
    o = federation.method.hp
    rows = []
    for i in federation.clients.ids:
        client = federation.clients[i]
        start = federation.server.state["model"]
        teacher = spectrum(client.state["personal"], o.tau, o)
        x, y = federation._device_data.local.take(torch.from_numpy(federation._device_data.positions(i, "train")))
        w = start.weights.clone().requires_grad_()
        ce = torch.nn.functional.cross_entropy(Forward()(start.with_weights(w), x), y)
        d = divergence(start.with_weights(w), teacher, o.tau, o)
        norms = [float(torch.autograd.grad(value, w)[0].norm()) for value in (ce, d)]
        rows.append([norms[0], float(d.detach()), norms[1]])
    return torch.tensor(rows).mean(0).tolist()


if __name__ == "__main__":
    main()
