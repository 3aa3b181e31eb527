"""Train a model centrally on some classes of an .npz file of pictures, as a start for federations on the others.

    python docs/examples/pretrain.py data/cifar10_jpeg.npz --model resnet18 --out runs/pretrained

leaves `runs/pretrained/weights.pt`, which a grid names as `pretrained:`, and `others.npz`, the classes that were left
out, as its data set. It runs at low priority and goes on where it was stopped. docs/modern-networks.md has more.
"""

import argparse
import os
from pathlib import Path

import numpy as np
import torch

import bench


def divide(source: Path, classes: list[int], folder: Path) -> tuple[Path, Path]:
    """Write the samples of these classes and of all others to a file each, with labels from 0."""
    content = dict(np.load(source))
    wanted = np.unique(content["train_labels"])
    files = folder / "classes.npz", folder / "others.npz"
    folder.mkdir(parents=True, exist_ok=True)
    for file, kept in zip(files, (np.isin(wanted, classes), ~np.isin(wanted, classes)), strict=True):
        rows = {part: np.isin(content[f"{part}_labels"].ravel(), wanted[kept]) for part in ("train", "test")}
        arrays = {key: content[key][rows[key.partition("_")[0]]] for key in content if key.partition("_")[0] in rows}
        labels = {key: np.searchsorted(wanted[kept], arrays[key].ravel()) for key in arrays if key.endswith("labels")}
        if not file.exists():
            np.savez(file, **(arrays | labels))
    return files


def main() -> None:
    """Divide the file, train, and save the state dict."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="arrays train_images, train_labels, test_images, test_labels")
    parser.add_argument("--classes", type=int, nargs="+", default=[0, 1, 2, 3, 4], help="labels to train on")
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="another setting of the cell")
    given = parser.parse_args()
    os.nice(10)
    classes, _ = divide(given.source, given.classes, given.out)
    grid = {
        "methods": [{"name": "centralized", "fine_tune_epochs": 0}],
        "datasets": [{"name": "npz", "path": str(classes)}],
        "clients": 1, "alphas": [1.0], "seeds": [given.seed], "validation_share": 0.1, "model": given.model,
        "rounds": given.epochs, "batch_size": 64, "lr": 0.05, "momentum": 0.9, "augment": "crop_flip",
    }  # fmt: skip
    run = bench.run(grid, out=given.out / "run", overrides=given.set, keep="server")
    torch.save(run.cells[0].model().network.state_dict(), given.out / "weights.pt")
    tests = run.metrics.query("metric == 'gm' and quantity == 'accuracy' and split == 'test'")
    print(f"{given.out / 'weights.pt'}: test accuracy {100 * tests['value'].iloc[-1]:.1f} %")


if __name__ == "__main__":
    main()
