"""Activation checkpointing: parts of the network are computed twice instead of kept (arXiv:1604.06174)."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from template.errors import InputError, did_you_mean
from template.model.norms import batch_norms


def checkpoint_activations(network: nn.Module, names: Sequence[str]) -> None:
    """Keep only the inputs of the named modules for the backward pass, in place; names of weights stay as they are.

    Raises:
        InputError: The network has no such module.
    """
    modules = dict(network.named_modules())
    for name in names:
        if not name or name not in modules:
            raise InputError(
                f"model.checkpoint_activations has {name!r}, which the network does not{did_you_mean(name, modules)} "
                f"Its parts: {', '.join(part for part, _ in network.named_children())}"
            )
        module = modules[name]
        # a partial, so that a copy of the network (a moving average) is bound to the copy's own module
        module.forward = partial(_forward, module)


def _forward(module: nn.Module, *inputs: Any) -> Any:
    if not torch.is_grad_enabled():
        return type(module).forward(module, *inputs)

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), _without_running_statistics(module)

    return checkpoint(partial(type(module).forward, module), *inputs, use_reentrant=False, context_fn=contexts)


@contextmanager
def _without_running_statistics(module: nn.Module) -> Iterator[None]:
    """The second forward pass normalises as the first did, and counts the batch in copies that are thrown away."""
    buffers = [(norm, dict(norm._buffers)) for norm in batch_norms(module).values()]
    for norm, own in buffers:
        norm._buffers.update({name: tensor.clone() for name, tensor in own.items() if tensor is not None})
    try:
        yield
    finally:
        for norm, own in buffers:
            norm._buffers.update(own)
