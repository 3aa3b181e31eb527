"""Numbers and identities that no change may alter unseen: tiny cells pinned by checksum, and ids of cells.

`python -m tests.golden` computes both again and writes `digests.json` and `ids.json`.
"""
