"""Encoders of texts as networks of one's own: one of Hugging Face, and a small one of torch's layers."""

import torch
from torch import Tensor, nn

import bench
from bench.data import TokenShape
from bench.plugin import MODELS


@MODELS.register("hugging_face")
def hugging_face(shape: TokenShape, classes: int, *, folder: str) -> nn.Module:
    """An encoder by its configuration, of a folder that `save_pretrained` wrote.

    Its values are drawn; those of the folder are read by `pretrained: FOLDER/model.safetensors`.
    """
    from transformers import AutoConfig, AutoModelForSequenceClassification

    config = AutoConfig.from_pretrained(folder, num_labels=classes)
    return bench.with_head(AutoModelForSequenceClassification.from_config(config), "classifier", padding=shape.padding)


@MODELS.register("small_encoder")
def small_encoder(shape: TokenShape, classes: int, *, width: int = 16, dropout: float = 0.1) -> nn.Module:
    """A block of attention between embeddings and the mean over the words."""
    return bench.with_head(Encoder(shape, classes, width, dropout), "classifier", padding=shape.padding)


class Encoder(nn.Module):
    """An encoder with the arguments of Hugging Face's."""

    def __init__(self, shape: TokenShape, classes: int, width: int, dropout: float) -> None:
        super().__init__()
        self.words = nn.Embedding(shape.vocabulary, width)
        self.places = nn.Embedding(shape.length, width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.dropout = nn.Dropout(dropout)
        self.norm = nn.LayerNorm(width)
        self.classifier = nn.Linear(width, classes)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.words(input_ids) + self.places.weight[: input_ids.shape[1]]
        scores = self.query(x) @ self.key(x).transpose(1, 2) / x.shape[2] ** 0.5
        weights = torch.where(attention_mask[:, None] == 1, scores, -1e9).softmax(2)
        x = self.norm(x + self.dropout(weights @ self.value(x))) * attention_mask[:, :, None]
        logits: Tensor = self.classifier(x.sum(1) / attention_mask.sum(1, keepdim=True))
        return logits
