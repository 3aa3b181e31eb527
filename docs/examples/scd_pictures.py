"""The pictures of docs/scd-study.md, from small runs with the digits: spectra, gradient ratios, accuracy against pull.

    python docs/examples/scd_pictures.py docs/scd-study

Writes `spectra.png`, `ratio.png`, `coefficient.png` and the numbers behind the last two as CSV. Takes some minutes.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from scd_curves import save
from scd_scale import PUBLISHED, READINGS, pull
from scd_term import accuracy, digits, sizes

from bench.federation.federation import Diverged, Federation
from methods.scd import Hyper
from reports.pictures.canvas import COLOURS, drawing, style_of

ROUNDS = 20
SHOWN = (0, 1, 5, 20)
SEEDS = (0, 1, 2)
# Around each reading's own scale; the published 0.01 is among them all.
LAMBDAS: dict[str, tuple[float, ...]] = {
    "generalised_kl": (0.001, 0.01, 0.03, 0.1, 0.3, 1.0),
    "simplex": (0.01, 1.0, 10.0, 30.0, 100.0, 300.0),
    "mean": (0.0001, 0.001, 0.003, 0.01, 0.03, 0.1),
    "restart": (0.001, 0.01, 0.03, 0.1, 0.3, 1.0),
}
DITTO = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


def main(folder: Path) -> None:
    """Draw all three."""
    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    spectra(folder / "spectra.png")
    ratio = pd.DataFrame(ratios(), columns=["reading", "phase", "round", "ratio"])
    save_table(ratio, folder / "ratio.csv")
    draw_ratios(ratio, folder / "ratio.png")
    points = pd.DataFrame(coefficients(), columns=["reading", "lambda", "seed", "coefficient", "pm"])
    save_table(points, folder / "coefficient.csv")
    draw_coefficients(points, folder / "coefficient.png")


def save_table(table: pd.DataFrame, file: Path) -> None:
    """Three digits are more than such runs have."""
    table.map(lambda value: float(f"{value:.3g}") if isinstance(value, float) else value).to_csv(file, index=False)


def spectra(file: Path) -> None:
    """Moduli of the generic and the personalized models over rounds, means over bands of frequencies."""
    federation = digits("scd", Hyper().model_dump(), alpha=0.1, rounds=ROUNDS)
    with drawing(("generic model", "personalized models, mean"), 1) as (canvas, axes):
        for k, version in enumerate(SHOWN):
            while federation.version < version:
                federation.advance()
            clients = [federation.clients[i].state["personal"] for i in federation.clients.ids]
            for axis, models in zip(axes, ([federation.server.state["model"]], clients), strict=True):
                moduli = torch.stack([torch.fft.rfft(w.weights, norm="ortho").abs() for w in models]).mean(0)
                bands = [float(band.mean()) for band in moduli.tensor_split(48)]
                axis.plot(np.linspace(0, 0.5, 48), bands, color=COLOURS[k])
        for axis, title in zip(axes, ("generic model", "personalized models, mean"), strict=True):
            axis.axvline(0.4, color="grey", linestyle=":")
            axis.set(title=title, xlabel="frequency (cycles per entry); dotted: tau", ylabel="modulus", yscale="log")
        save(canvas, file, {f"round {version}": {"color": COLOURS[k]} for k, version in enumerate(SHOWN)})


def ratios() -> Iterator[tuple[str, str, int, float]]:
    """Norm of the term's gradient over the cross-entropy's, at the published lambdas, in a run of each reading."""
    for reading, given in READINGS.items():
        federation = digits("scd", Hyper(**given).model_dump(), alpha=0.1, rounds=ROUNDS)
        try:
            while federation.version < ROUNDS:
                federation.advance()
                for phase, lam in PUBLISHED.items():
                    ce, _, spectral = sizes(federation, phase)
                    yield reading, phase, federation.version, lam * spectral / ce
        except Diverged:
            continue


def draw_ratios(table: pd.DataFrame, file: Path) -> None:
    """A line for each reading, a panel for each phase."""
    with drawing(tuple(PUBLISHED), 1) as (canvas, axes):
        for axis, phase in zip(axes, PUBLISHED, strict=True):
            for k, reading in enumerate(READINGS):
                line = table[(table["reading"] == reading) & (table["phase"] == phase)]
                axis.plot(line["round"], line["ratio"], **style_of(k))
            axis.axhline(1, color="grey", linestyle=":")
            axis.set(title=f"{phase} phase", xlabel="round", ylabel="term / cross-entropy", yscale="log")
        save(canvas, file, {reading: style_of(k) for k, reading in enumerate(READINGS)})


def coefficients() -> Iterator[tuple[str, float, int, float, float]]:
    """Every reading and Ditto at several lambdas: the pull, and personalized accuracy, at the end of the run."""
    arms: list[tuple[str, float, str, dict[str, Any]]] = [("ditto", lam, "ditto", {"lam": lam}) for lam in DITTO]
    for reading, lambdas in LAMBDAS.items():
        given = READINGS.get(reading) or {"preset": reading}
        for lam in lambdas:
            arms.append((reading, lam, "scd", Hyper(**given, lambda_g=0.0, lambda_p=lam).model_dump()))
    for reading, lam, method, hp in arms:
        for seed in SEEDS:
            federation = digits(method, hp, alpha=1.0, rounds=ROUNDS, seed=seed)
            try:
                while federation.version < ROUNDS:
                    federation.advance()
            except Diverged:
                continue
            size = lam if method == "ditto" else lam * mean_pull(federation)
            yield reading, lam, seed, size, 100 * accuracy(federation, "local")


def mean_pull(federation: Federation) -> float:
    """The term's pull on the personalized models for lambda 1, mean over clients."""
    generic, o = federation.server.state["model"], federation.method.hp
    personal = [federation.clients[i].state["personal"] for i in federation.clients.ids]
    return float(np.mean([pull(w, generic, 1.0, o)[0] for w in personal]))


def draw_coefficients(points: pd.DataFrame, file: Path) -> None:
    """Mean and standard deviation over seeds; the published lambda stands out."""
    with drawing(("one",), 1, (6.2, 3.4)) as (canvas, axes):
        for k, (reading, group) in enumerate(points.groupby("reading", sort=False)):
            line = group.groupby("lambda").agg({"coefficient": "mean", "pm": ["mean", "std"]})
            x, y, std = (line[key].to_numpy() for key in (("coefficient", "mean"), ("pm", "mean"), ("pm", "std")))
            axes[0].errorbar(x, y, std, marker=".", **style_of(k))
            here = line.index.to_numpy() == PUBLISHED["personal"]
            if reading != "ditto":
                axes[0].plot(x[here], y[here], "o", color=COLOURS[k], markersize=8)
        axes[0].set(xscale="log", xlabel="effective proximal coefficient", ylabel="PM accuracy (%)")
        save(canvas, file, {str(reading): style_of(k) for k, reading in enumerate(points["reading"].unique())})


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python docs/examples/scd_pictures.py FOLDER")
    main(Path(sys.argv[1]))
