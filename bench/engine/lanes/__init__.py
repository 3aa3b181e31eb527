"""Layers that handle all networks of a cohort in one operation, for GPUs."""

from typing import Any

from torch import Tensor, nn

from bench.engine.lanes.convolution import LaneConvolution, PlaceMean, has_lane_convolution
from bench.engine.lanes.norm import LaneBatchNorm, has_lane_norm


def with_lanes(net: nn.Module) -> nn.Module:
    """Replace a network's BatchNorm layers and convolutions in place; tensors keep their names.

    A ResNet's ReLUs become part of its BatchNorm.
    """
    for name, child in net.named_children():
        if has_lane_norm(child):
            setattr(net, name, LaneBatchNorm(child))
        elif has_lane_convolution(child):
            setattr(net, name, LaneConvolution(child))
        elif type(child) is nn.AdaptiveAvgPool2d and child.output_size in (1, (1, 1)) and not _has_hooks(child):
            setattr(net, name, PlaceMean())
        else:
            setattr(net, name, _with_relus(with_lanes(child)))
    return net


class LaneBlock(nn.Module):
    """Replacement for a `BasicBlock` or a `Bottleneck` of torchvision whose layers have been replaced.

    Its BatchNorm layers add the residual and take the ReLU; tensors keep their names.
    """

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        for name, layer in block.named_children():
            if name != "relu":
                setattr(self, name, layer)
        self.depth = sum(name.startswith("conv") for name, _ in block.named_children())
        for layer in self.children():
            if isinstance(layer, LaneBatchNorm):
                layer.relu = True
        self.shortcut = getattr(block, "downsample", None) is not None
        self.training = block.training  # its layers have modes of their own: some may be frozen

    def forward(self, x: Tensor) -> Tensor:
        """The block's outputs."""
        shortcut: Tensor = self.downsample(x) if self.shortcut else x  # type: ignore[operator]
        for i in range(1, self.depth):
            x = self.get_submodule(f"bn{i}")(self.get_submodule(f"conv{i}")(x))
        convolved = self.get_submodule(f"conv{self.depth}")(x)
        out: Tensor = self.get_submodule(f"bn{self.depth}")(convolved, shortcut)
        return out


def _with_relus(net: nn.Module) -> nn.Module:
    """Let the BatchNorm layers of a ResNet or of a block take the ReLU that follows, if they are those for lanes.

    An activation that was put in its place stays, and so does a block with hooks.
    """
    from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet

    kind, norms = type(net), [layer for name, layer in net.named_children() if name.startswith("bn")]
    if kind not in (BasicBlock, Bottleneck, ResNet) or not all(isinstance(layer, LaneBatchNorm) for layer in norms):
        return net
    relu = net.get_submodule("relu")
    if type(relu) is not nn.ReLU or _has_hooks(relu) or _has_hooks(net):
        return net
    if kind is not ResNet:
        return LaneBlock(net)
    stem: Any = net
    stem.bn1.relu, stem.relu = True, nn.Identity()
    return net


def _has_hooks(layer: nn.Module) -> bool:
    return bool(layer._forward_hooks or layer._forward_pre_hooks)
