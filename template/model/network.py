"""What is trained: (B, 3, H, W) float to (B, K) logits. Fill this in for a new kind of network."""

import logging
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from template.errors import InputError, did_you_mean

log = logging.getLogger(__name__)
Stem = Literal["default", "small"]


class SmallNet(nn.Module):
    """Three stages of two convolutions for images of about 8 to 64 pixels; the example to read and to change.

    Args:
        num_classes: K.
        width: Channels of the first stage; the second and third have two and four times as many.
        dropout: Probability of dropping a feature before the head.
    """

    def __init__(self, num_classes: int, width: int = 32, dropout: float = 0.0) -> None:
        super().__init__()
        self.features = nn.Sequential(
            _convolution(3, width),
            _convolution(width, width, stride=2),
            _convolution(width, 2 * width),
            _convolution(2 * width, 2 * width, stride=2),
            _convolution(2 * width, 4 * width),
            _convolution(4 * width, 4 * width),
        )
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(4 * width, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) float to (B, K) logits."""
        return self.head(self.dropout(self.features(images).mean(dim=(2, 3))))


def _convolution(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


def build_network(
    name: str, num_classes: int, pretrained: bool = False, stem: Stem = "default", width: int = 32, dropout: float = 0.0
) -> nn.Module:
    """Build a network by name, with a head for ``num_classes``.

    Args:
        name: ``small``, or a classification network of torchvision, such as ``resnet18`` or ``convnext_tiny``, or
            with ``timm:`` before it one of timm.
        num_classes: K.
        pretrained: Start from torchvision's best weights for ImageNet (downloaded once by torch.hub).
        stem: ``small`` keeps the resolution in the first layers of a ResNet, for images under about 64 pixels.
        width: Of ``small``.
        dropout: Of ``small``.

    Raises:
        InputError: The name is unknown, or the network has no such weights or stem.
    """
    if name.startswith("timm:"):
        return _timm_network(name.removeprefix("timm:"), num_classes, pretrained)
    if name == "small":
        if pretrained:
            raise InputError("model.pretrained is true, and network 'small' has no pretrained weights; set it false")
        return SmallNet(num_classes, width, dropout)
    from torchvision import models

    known = models.list_models(module=models)
    if name not in known:
        raise InputError(
            f"model.network is {name!r}{did_you_mean(name, ['small', *known])} "
            "Known: small, the names of torchvision.models.list_models(module=torchvision.models), and timm:NAME"
        )
    try:
        # what Inception and GoogLeNet will leave out one day, and warn of
        initialise = {"init_weights": True} if name in ("googlenet", "inception_v3") and not pretrained else {}
        network = models.get_model(name, weights="DEFAULT" if pretrained else None, **initialise)
    except OSError as error:
        raise InputError(
            f"the pretrained weights of {name} could not be downloaded ({error}); put the .pth file into "
            f"{torch.hub.get_dir()}/checkpoints/, or set model.pretrained to false"
        ) from None
    if hasattr(network, "aux_logits"):
        # Inception's and GoogLeNet's second heads: their losses are not taken, so no gradient would reach them
        network.aux_logits, network.AuxLogits, network.aux1, network.aux2 = False, None, None, None
    replace_head(network, num_classes)
    if stem == "small":
        _small_stem(network, name)
    return network


def _timm_network(name: str, num_classes: int, pretrained: bool) -> nn.Module:
    try:
        import timm
    except ImportError:
        raise InputError(f"model.network timm:{name} needs timm: pip install -e '.[timm]'") from None
    if not timm.is_model(name):
        raise InputError(f"model.network is 'timm:{name}'{did_you_mean(name, timm.list_models())} See timm.list_models")
    try:
        return timm.create_model(name, pretrained=pretrained, num_classes=num_classes)
    except (OSError, RuntimeError) as error:
        raise InputError(
            f"timm:{name} could not be made ({str(error).splitlines()[0]}); where its weights cannot be "
            "downloaded, set model.pretrained to false"
        ) from None


def load_weights(network: nn.Module, path: Path) -> None:
    """Start from the weights of a checkpoint or of a state dict file, by name, and log what was not taken.

    Raises:
        InputError: The file cannot be read, or no name and shape in it fits the network.
    """
    try:
        stored = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds for a damaged file
        raise InputError(f"model.weights: cannot read {path}: {str(error).splitlines()[0]}") from error
    stored = {name.removeprefix("network."): tensor for name, tensor in stored.get("state_dict", stored).items()}
    own = network.state_dict()
    taken = {name: tensor for name, tensor in stored.items() if name in own and own[name].shape == tensor.shape}
    if not taken:
        raise InputError(
            f"model.weights: nothing in {path} fits the network; its names start {', '.join([*stored][:3])}"
        )
    network.load_state_dict(taken, strict=False)
    log.info(f"weights from {path}: {len(taken)} of {len(own)} tensors taken")
    other_shape = [f"{name} {[*stored[name].shape]}" for name in stored if name in own and name not in taken]
    for what, names in {
        "of another shape, left as initialised": other_shape,
        "in the file but not in the network": [name for name in stored if name not in own],
        "not in the file, left as initialised": [name for name in own if name not in stored],
    }.items():
        if names:
            log.info(f"  {len(names)} {what}: {', '.join(names[:8])}{', …' if len(names) > 8 else ''}")


def head_name(network: nn.Module) -> str:
    """Name of the layer that makes the logits: the last Linear or Conv2d of the network."""
    return [name for name, module in network.named_modules() if isinstance(module, (nn.Linear, nn.Conv2d))][-1]


def replace_head(network: nn.Module, num_classes: int) -> None:
    """Put a new, randomly initialised layer for ``num_classes`` in the place of the network's last one."""
    name = head_name(network)
    old = network.get_submodule(name)
    new: nn.Module
    if isinstance(old, nn.Linear):
        new = nn.Linear(old.in_features, num_classes)
    else:
        assert isinstance(old, nn.Conv2d)
        new = nn.Conv2d(old.in_channels, num_classes, kernel_size=1)
    network.set_submodule(name, new)
    if old.weight.shape[0] != num_classes:
        log.info(f"head {name}: {old.weight.shape[0]} classes replaced by {num_classes}, randomly initialised")


def _small_stem(network: nn.Module, name: str) -> None:
    first = getattr(network, "conv1", None)
    if not isinstance(first, nn.Conv2d) or not hasattr(network, "maxpool"):
        raise InputError(f"model.stem is 'small', which is for ResNets, and model.network is {name!r}; use 'default'")
    network.conv1 = nn.Conv2d(3, first.out_channels, 3, padding=1, bias=False)
    network.maxpool = nn.Identity()
