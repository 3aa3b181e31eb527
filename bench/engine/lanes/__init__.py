"""Layers that handle all networks of a cohort in one operation, for GPUs."""

from torch import nn

from bench.engine.lanes.convolution import LaneConv2d, PlaceMean, has_lane_convolution
from bench.engine.lanes.norm import LaneBatchNorm, has_lane_norm
from bench.engine.lanes.resnet import with_relus


def with_lanes(net: nn.Module, *, convolutions: bool) -> nn.Module:
    """Replace the network's BatchNorm layers in place; tensors keep their names.

    Args:
        convolutions: whether to replace convolutions, too, and a ResNet's ReLUs, which become part of its BatchNorm.
    """
    for name, child in net.named_children():
        if has_lane_norm(child):
            setattr(net, name, LaneBatchNorm(child))
        elif convolutions and has_lane_convolution(child):
            setattr(net, name, LaneConv2d(child))
        elif convolutions and isinstance(child, nn.AdaptiveAvgPool2d) and child.output_size in (1, (1, 1)):
            setattr(net, name, PlaceMean())
        else:
            with_lanes(child, convolutions=convolutions)
            if convolutions:
                setattr(net, name, with_relus(child))
    return net
