"""The optimizer: its class and arguments by name, and which parameters decay and how fast each learns."""

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from template.errors import InputError, did_you_mean


def check_optimizer(name: str, arguments: dict[str, Any]) -> tuple[type[torch.optim.Optimizer], dict[str, Any]]:
    known = {
        key: value
        for key, value in vars(torch.optim).items()
        if inspect.isclass(value) and issubclass(value, torch.optim.Optimizer) and value is not torch.optim.Optimizer
    }
    if name not in known:
        raise InputError(f"model.optimizer is {name!r}{did_you_mean(name, known)} Known: {', '.join(sorted(known))}")
    accepted = [parameter for parameter in inspect.signature(known[name]).parameters if parameter != "params"]
    for argument in arguments:
        if argument not in accepted:
            raise InputError(
                f"model.optimizer_options has {argument!r}, which {name} does not take"
                f"{did_you_mean(argument, accepted)} It takes {', '.join(accepted)}"
            )
    return known[name], arguments


def parameter_groups(
    network: nn.Module,
    learning_rate: float,
    weight_decay: float,
    decay_norms_and_biases: bool = False,
    layer_decay: float = 1.0,
) -> list[dict[str, Any]]:
    """Optimizer groups of the parameters that train: those that decay, and those of one dimension, which do not.

    Norms and biases have one dimension each; decaying them only costs accuracy (arXiv:1812.01187, section 3.1).

    Args:
        network: The network.
        learning_rate: Of the layer nearest to the logits.
        weight_decay: Of the parameters that decay.
        decay_norms_and_biases: Whether those of one dimension decay too.
        layer_decay: Each layer further down learns this many times as fast (arXiv:2106.08254, appendix); the layers
            are those of :func:`layers`.
    """
    depth = {id(p): depth for depth, layer in enumerate(reversed(layers(network))) for p in layer}
    groups: dict[tuple[int, bool], dict[str, Any]] = {}
    for parameter in network.parameters():
        if parameter.requires_grad:
            down = depth[id(parameter)] if layer_decay != 1.0 else 0
            decays = parameter.ndim > 1 or decay_norms_and_biases
            group = {"lr": learning_rate * layer_decay**down, "weight_decay": weight_decay if decays else 0.0}
            groups.setdefault((down, not decays), {"params": [], **group})["params"].append(parameter)
    return [groups[key] for key in sorted(groups)]


def layers(network: nn.Module) -> list[list[nn.Parameter]]:
    """Parameters by layer, from the images to the logits, for a network that registers its parts in that order.

    A layer is a part, or a part of a part, that holds at most half of the network's parameters: for ResNet-18 conv1,
    bn1, layer1, layer2, layer3, layer4.0, layer4.1, fc. Parameters of no part (a class token) are a layer of their own.
    """
    half = sum(parameter.numel() for parameter in network.parameters()) / 2

    def parts(module: nn.Module) -> Iterator[list[nn.Parameter]]:
        own = list(module.parameters(recurse=False))
        whole = list(module.parameters())
        if module is not network and (sum(p.numel() for p in whole) <= half or len(own) == len(whole)):
            yield whole
            return
        if own:
            yield own
        for child in module.children():
            yield from parts(child)

    return [part for part in parts(network) if part]
