"""Layers that run for many clients' networks in one operation, for GPUs."""

from torch import Tensor, nn

from bench.lanes.convolution import LaneConv2d, PlaceMean, has_lane_convolution
from bench.lanes.norm import LaneBatchNorm, has_lane_norm


def on_gpu(tensor: Tensor) -> bool:
    """Whether it is passes over memory that cost time; a CPU is rather held to the bytes that it has always given."""
    return tensor.device.type != "cpu"


def with_lanes(net: nn.Module, *, convolutions: bool) -> nn.Module:
    """The network with its BatchNorm layers replaced, and its convolutions if asked for; all names stay."""
    for name, child in net.named_children():
        if has_lane_norm(child):
            setattr(net, name, LaneBatchNorm(child))
        elif convolutions and has_lane_convolution(child):
            setattr(net, name, LaneConv2d(child))
        elif convolutions and isinstance(child, nn.AdaptiveAvgPool2d) and child.output_size in (1, (1, 1)):
            setattr(net, name, PlaceMean())
        else:
            with_lanes(child, convolutions=convolutions)
    return net
