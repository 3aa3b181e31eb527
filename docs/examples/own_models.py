"""Networks as people write them, each registered as a model: `--plugin own_models.py` (docs/modern-networks.md)."""

from types import SimpleNamespace

import torch
from torch import nn

from bench import with_head
from bench.plugin import MODELS


@MODELS.register("class_token")
class ClassToken(nn.Module):
    """Patches of pictures, a class token and positions, which are bare parameters."""

    def __init__(self, shape: tuple[int, ...], classes: int, *, width: int = 16):
        super().__init__()
        self.patches = nn.Conv2d(shape[0], width, 4, 4)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(0.02 * torch.randn(1, 1 + shape[1] // 4 * (shape[2] // 4), width))
        self.mixer = nn.Linear(width, width)
        self.head = nn.Linear(width, classes)

    def features(self, x):
        places = self.patches(x).flatten(2).transpose(1, 2)
        places = torch.cat([self.token.expand(len(x), -1, -1), places], 1) + self.positions
        return torch.tanh(self.mixer(places)).mean(1)

    def forward(self, x):
        return self.head(self.features(x))


@MODELS.register("attention")
class Attention(nn.Module):
    """The rows of a picture, torch's attention among them, and a fixed table of positions."""

    def __init__(self, shape: tuple[int, ...], classes: int, *, heads: int = 2):
        super().__init__()
        self.attention = nn.MultiheadAttention(shape[2], heads, batch_first=True)
        self.register_buffer("table", torch.linspace(-1, 1, shape[1])[:, None], persistent=False)
        self.head = nn.Linear(shape[2], classes)

    def features(self, x):
        rows = x.mean(1) + self.table
        return self.attention(rows, rows, rows, need_weights=False)[0].mean(1)

    def forward(self, x):
        return self.head(self.features(x))


@MODELS.register("encoder")
class Encoder(nn.Module):
    """The rows of a picture and torch's encoder, whose dropout is set to 0."""

    def __init__(self, shape: tuple[int, ...], classes: int, *, layers: int = 2):
        super().__init__()
        layer = nn.TransformerEncoderLayer(shape[2], 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(shape[2], classes)

    def features(self, x):
        return self.encoder(x.mean(1)).mean(1)

    def forward(self, x):
        return self.head(self.features(x))


@MODELS.register("shuffle")
def shuffle(shape: tuple[int, ...], classes: int) -> nn.Module:
    """A network of torchvision with a first layer for any number of channels, cut before its last layer."""
    from torchvision.models import shufflenet_v2_x0_5

    net = shufflenet_v2_x0_5(weights=None, num_classes=classes)
    net.conv1[0] = nn.Conv2d(shape[0], 24, 3, stride=2, padding=1, bias=False)
    return with_head(net, "fc")


class Classifier(nn.Module):
    """A head of two layers."""

    def __init__(self, width: int, classes: int):
        super().__init__()
        self.dense = nn.Linear(width, width)
        self.out_proj = nn.Linear(width, classes)

    def forward(self, x):
        return self.out_proj(torch.tanh(self.dense(x)))


class ForClassification(nn.Module):
    """Names, buffers and output as in Hugging Face's transformers."""

    def __init__(self, shape: tuple[int, ...], classes: int, width: int = 12):
        super().__init__()
        self.net = nn.ModuleDict({"embeddings": nn.Embedding(shape[1], width), "dense": nn.Linear(shape[2], width)})
        self.register_buffer("position_ids", torch.arange(shape[1]), persistent=False)
        self.classifier = Classifier(width, classes)

    def forward(self, pixel_values):
        rows = self.net["dense"](pixel_values.mean(1)) + self.net["embeddings"](self.position_ids)
        return SimpleNamespace(logits=self.classifier(torch.relu(rows).mean(1)))


@MODELS.register("hugging_face_like")
def hugging_face_like(shape: tuple[int, ...], classes: int) -> nn.Module:
    """A network whose output has the logits as an attribute, cut before its two last layers."""
    return with_head(ForClassification(shape, classes), "classifier")
