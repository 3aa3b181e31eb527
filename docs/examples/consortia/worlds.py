"""Four made-up consortia whose right decision is known, each as `<world>/data.npz` with a grid for `bench decide`.

    python docs/examples/consortia/worlds.py equal 0 /tmp/equal
    bench decide /tmp/equal/grid.yaml --minutes 2 --margin 3 --confidence 0.999

A site's label is the sign of a linear function of its inputs with some noise. What differs between worlds is whose
function that is, and how many rows a site has to train on; each has 250 rows for tests, so that something can be seen.

- `equal`: ten sites with one function and few rows: train together, and a single model is enough.
- `unrelated`: eight sites, each with a function of its own and many rows: others can teach nothing that counts.
- `clusters`: two groups of five sites with opposite functions and few rows: a single model is no better than a coin.
- `tiny`: seven sites with one function and many rows, and one with twelve, which gains most.
"""

import sys
from pathlib import Path

import numpy as np
import yaml

TESTS = 250
"""Rows of each site for tests."""
WORLDS = {"equal": (10, 30, 20), "unrelated": (8, 300, 6), "clusters": (10, 40, 20), "tiny": (8, 300, 20)}
"""Sites, rows to train on at each, and inputs."""
TINY = "site 3"


def functions(world: str, sites: int, width: int, rng: np.random.Generator) -> np.ndarray:
    """The coefficients of each site, `[sites, width]`."""
    common = rng.normal(size=width)
    if world == "unrelated":
        own = rng.normal(size=(sites, width))
        return own / np.linalg.norm(own, axis=1, keepdims=True)
    signs = np.where(np.arange(sites) % 2, -1, 1) if world == "clusters" else np.ones(sites)
    return signs[:, None] * common / np.linalg.norm(common)


def write(world: str, seed: int, folder: Path) -> Path:
    """Write a world; returns its grid."""
    rng = np.random.default_rng([seed, *WORLDS[world]])
    sites, rows, width = WORLDS[world]
    sizes = [12 if world == "tiny" and f"site {site}" == TINY else rows for site in range(sites)]
    arrays = {}
    groups = []
    of_sites = functions(world, sites, width, rng)
    for part, counts in (("train", sizes), ("test", [TESTS] * sites)):
        site = np.repeat(np.arange(sites), counts)
        x = rng.normal(size=(len(site), width))
        y = (x * of_sites[site]).sum(1) + 0.3 * rng.normal(size=len(site)) > 0
        arrays |= {f"{part}_images": x.astype(np.float32), f"{part}_labels": y.astype(np.int64)}
        groups += [f"site {number}" for number in site]
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "data.npz", **arrays, groups=np.array(groups))
    data = {"name": "npz", "path": str(folder / "data.npz"), "label": world}
    grid = {
        "name": world, "methods": ["local"], "datasets": [data], "partition": "natural", "clients": sites,
        "model": "mlp", "model_options": {"hidden": 16}, "rounds": 25, "batch_size": 10, "lr": 0.1,
    }  # fmt: skip
    (folder / "grid.yaml").write_text(yaml.safe_dump(grid), encoding="utf-8")
    return folder / "grid.yaml"


if __name__ == "__main__":
    write(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
