"""Batch norms: replaced by group norms, synchronised over processes, or frozen."""

import logging
from typing import Literal

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

log = logging.getLogger(__name__)
Norm = Literal["batch", "sync", "group"]


def batch_norms(network: nn.Module) -> dict[str, _BatchNorm]:
    """The layers of a network that take statistics of the batch, by name."""
    return {name: module for name, module in network.named_modules() if isinstance(module, _BatchNorm)}


def groups_for(channels: int) -> int:
    """The most groups, up to 32, that divide the channels (32: arXiv:1803.08494, table 3); 72 channels make 24."""
    return next(groups for groups in range(32, 0, -1) if channels % groups == 0)


def use_group_norms(network: nn.Module) -> None:
    """Replace each batch norm, keeping its affine weights: no statistics of the batch, none to share between ranks."""
    norms = batch_norms(network)
    for name, old in norms.items():
        new = nn.GroupNorm(groups_for(old.num_features), old.num_features, old.eps, old.affine)
        if old.affine:
            new.weight, new.bias = old.weight, old.bias
        network.set_submodule(name, new)
    log.info(f"model.norm group: {len(norms)} batch norms became group norms, their affine weights kept")


def use_synchronised_norms(network: nn.Module, device: str, ranks: int) -> nn.Module:
    """Let batch norms take their statistics over all processes; off, with a message, where torch cannot do it."""
    if device == "cpu":
        log.warning("model.norm is sync, which torch does not have on a CPU: each process takes its own statistics")
        return network
    log.info(f"model.norm sync: {len(batch_norms(network))} batch norms over {ranks} process{'es' * (ranks > 1)}")
    return nn.SyncBatchNorm.convert_sync_batchnorm(network)


def freeze_norms(network: nn.Module) -> None:
    """Put the batch norms into eval mode: they use their running statistics and leave them as they are."""
    for norm in batch_norms(network).values():
        norm.eval()
