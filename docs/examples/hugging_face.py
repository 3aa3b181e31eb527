"""Data from Hugging Face, from the download folder to a report, offline: python hugging_face.py [FOLDER]

FOLDER is what a download left, such as that of `hf download NAME --repo-type dataset --local-dir FOLDER`. Without it a
small one is made in the working folder: scikit-learn's digits as Hugging Face stores pictures, each written by one of
four offices. The package `datasets` of Hugging Face is not needed.
"""

import io
import json
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image
from sklearn.datasets import load_digits

import bench

CLASSES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
OFFICES = ["north", "east", "south", "west"]


def make_download(folder: Path, rows: int = 600) -> None:
    """Write `data/train-00000-of-00001.parquet` and the same of tests, as the Hub has them.

    A picture is a struct of the bytes of its file and a path; a label is a number, whose name is in the schema. The
    offices have classes of their own more often than others.
    """
    digits, rng = load_digits(), np.random.default_rng(0)
    features = {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": CLASSES}}
    features["office"] = {"_type": "Value", "dtype": "string"}
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    schema = pa.schema(
        [("image", image), ("label", pa.int64()), ("office", pa.string())],
        metadata={"huggingface": json.dumps({"info": {"features": features}})},
    )
    (folder / "data").mkdir(parents=True)
    for part, chosen in (("train", range(rows)), ("test", range(rows, rows + rows // 3))):
        columns: dict[str, list[object]] = {"image": [], "label": [], "office": []}
        for row in chosen:
            file, label = io.BytesIO(), int(digits.target[row])
            Image.fromarray((digits.images[row] * 15).astype(np.uint8)).save(file, "PNG")
            columns["image"].append({"bytes": file.getvalue(), "path": f"{row}.png"})
            columns["label"].append(label)
            columns["office"].append(OFFICES[label % 4 if rng.random() < 0.6 else int(rng.integers(4))])
        pq.write_table(pa.table(columns, schema=schema), folder / "data" / f"{part}-00000-of-00001.parquet")


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "download")
    if not folder.exists():
        make_download(folder)
    grid = {
        "methods": ["fedavg", "local", "fedper"],
        "datasets": [{"name": "hugging_face", "path": str(folder), "label_column": "label", "site_column": "office"}],
        "partition": "natural",
        "clients": "all",
        "seeds": [0],
        "rounds": 10,
        "model": "mlp",
        "model_options": {"hidden": 32},
        "lr": 0.1,
    }
    run = bench.run(grid, out="runs/hugging_face")
    print(run)
    print(bench.report("runs/hugging_face"))


if __name__ == "__main__":
    main()
