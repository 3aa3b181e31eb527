"""Made-up reviews of five shops, and a tokenizer of their words: `python reviews.py` writes both beside this file.

A shop's customers are more or less content, and write accordingly; what a word says is the same everywhere.
"""

from pathlib import Path

import numpy as np
import pandas as pd
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

SHOPS = {"north": 0.2, "south": 0.35, "east": 0.5, "west": 0.65, "mill": 0.8}
"""The share of content customers of each shop."""
CONTENT = ["great", "lovely", "quick", "friendly", "clean", "warm", "fresh", "perfect", "kind", "happy"]
CROSS = ["slow", "rude", "dirty", "cold", "stale", "awful", "noisy", "broken", "late", "sad"]
OTHER = ["the", "room", "food", "staff", "was", "and", "very", "service", "place", "we", "table", "waiter", "bill"]


def table(rows: int = 400, seed: int = 0) -> pd.DataFrame:
    """A table with a row for each review: shop, review, and whether the customer is content."""
    rng = np.random.default_rng(seed)
    reviews = []
    for shop in rng.choice(list(SHOPS), rows):
        content = rng.random() < SHOPS[shop]
        words = [*rng.choice(OTHER, rng.integers(3, 12)), *rng.choice(CONTENT if content else CROSS, 2)]
        reviews.append((shop, " ".join(rng.permutation(words)), "content" if content else "cross"))
    return pd.DataFrame(reviews, columns=["shop", "review", "customer"])


def tokenizer(texts: pd.Series) -> Tokenizer:
    """A tokenizer as that of BERT: word pieces of small letters between [CLS] and [SEP], and [PAD]."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=200, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    ends = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    return tokenizer


if __name__ == "__main__":
    folder = Path(__file__).parent
    reviews = table()
    reviews.to_csv(folder / "reviews.csv", index=False)
    tokenizer(reviews["review"]).save(str(folder / "tokenizer.json"))
