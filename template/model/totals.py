"""Sums over training samples, made where a line of the log waits for the device anyway."""

from collections.abc import Mapping
from typing import Any

import lightning.pytorch as L
import torch
from torch import Tensor

_MOST = 1000  # batches whose values are kept unsummed


class Totals:
    """Means over training samples: of the epoch, and since the last line of the log.

    A step only keeps its values, which costs nothing; adding them up on the device took a small step 0.1 ms. Their sums
    are added batch by batch, so that when they are made, or a run resumed, changes no bit of them.

    Attributes:
        names: Names of the P values that are summed.
        pending: Of each batch that is not summed yet its P values, (B,) each, and B.
    """

    def __init__(self) -> None:
        self.names: tuple[str, ...] = ()
        self.pending: list[tuple[list[Tensor], int]] = []
        self._epoch: list[float] = []  # P sums and the number of samples
        self._line: list[float] = []

    def add(self, parts: Mapping[str, Tensor], count: int) -> None:
        """Add (B,) values by name, of ``count`` = B samples."""
        self.names = tuple(parts)
        self.pending.append(([part.detach() for part in parts.values()], count))
        if len(self.pending) >= _MOST:
            self.settle()

    def settle(self) -> None:
        """Sum what is pending; waits for the device."""
        if not self.pending:
            return
        dtype = _widest(self.pending[0][0][0].device)
        sums = torch.stack([part.sum(dtype=dtype) for parts, _ in self.pending for part in parts])
        rows = sums.view(len(self.pending), -1).tolist()
        for row, (_, count) in zip(rows, self.pending, strict=True):
            self._epoch = _plus(self._epoch, [*row, count])
            self._line = _plus(self._line, [*row, count])
        self.pending.clear()

    def since_line(self) -> dict[str, float]:
        """Means by name over this rank's samples since the last call; waits for the device."""
        self.settle()
        means, self._line = self._means(self._line), []
        return means

    def of_epoch(self, trainer: L.Trainer) -> dict[str, float]:
        """Means by name over the epoch's samples of all ranks, which all have to call; starts the next epoch."""
        self.settle()
        means, self._epoch = self._means(self._over_ranks(trainer)), []
        return means

    def _over_ranks(self, trainer: L.Trainer) -> list[float]:
        if trainer.world_size == 1:
            return self._epoch
        device = trainer.strategy.root_device
        own = self._epoch or [0.0] * (len(self.names) + 1)
        tensor = torch.tensor(own, dtype=_widest(device), device=device)
        total: list[float] = trainer.strategy.reduce(tensor, reduce_op="sum").tolist()
        return total

    def _means(self, sums: list[float]) -> dict[str, float]:
        """By name; nothing where there is no sample, as after a step that was skipped."""
        *values, count = sums or [0.0]
        return {name: total / count for name, total in zip(self.names, values, strict=True)} if count else {}

    def state(self, trainer: L.Trainer) -> dict[str, Any]:
        """What a checkpoint keeps: the epoch's sums over all ranks, and those of this rank since the last line."""
        self.settle()
        if not self.names:
            return {}
        return {"names": list(self.names), "epoch": list(self._over_ranks(trainer)), "line": list(self._line)}

    def restore(self, state: Mapping[str, Any], first_rank: bool) -> None:
        """Take up what a checkpoint keeps: rank 0 gets the sums of all ranks, the others start from nothing."""
        self.pending, self._epoch, self._line = [], [], []
        if state:
            self.names = tuple(state["names"])
        if state and first_rank:
            self._epoch, self._line = list(state["epoch"]), list(state["line"])


def _widest(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64


def _plus(totals: list[float], row: list[float]) -> list[float]:
    return [total + value for total, value in zip(totals, row, strict=True)] if totals else row
