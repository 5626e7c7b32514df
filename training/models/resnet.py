"""ResNet-18 (He et al. 2015, "Deep Residual Learning") with the stem for small images."""

from torch import Tensor, nn
from torch.nn import functional as F

from training.models.layers import convolution, head


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with a shortcut (He et al., section 4.1)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = convolution(inputs, outputs, stride=stride)
        self.second = nn.Sequential(nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs))
        self.shortcut = (
            nn.Identity()
            if stride == 1 and inputs == outputs
            else nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        )

    def forward(self, images: Tensor) -> Tensor:
        """Map [B, inputs, H, W] to [B, outputs, H/stride, W/stride]."""
        return F.relu(self.second(self.first(images)) + self.shortcut(images), inplace=True)


def resnet18(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Return ResNet-18 with the CIFAR stem (3x3 stride 1, no first max-pool); 11.2 million parameters."""
    channels, _, _ = shape
    blocks: list[nn.Module] = []
    inputs = 64
    for outputs, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        blocks += [BasicBlock(inputs, outputs, stride), BasicBlock(outputs, outputs, 1)]
        inputs = outputs
    return nn.Sequential(convolution(channels, 64), *blocks, *head(512, classes))
