"""Sums over training samples that stay on the device until a line of the log needs them."""

from collections.abc import Mapping
from typing import Any

import lightning.pytorch as L
import torch
from torch import Tensor


class Totals:
    """Sums over training samples, kept on the device so that no step waits for it: of the epoch, and since a log line.

    Attributes:
        names: Names of the P values that are summed.
        sums: (2, P + 1) sums of the epoch and since the last line, the number of samples last; None before the first.
    """

    def __init__(self) -> None:
        self.names: tuple[str, ...] = ()
        self.sums: Tensor | None = None

    def add(self, parts: Mapping[str, Tensor], count: int) -> None:
        """Add (B,) values by name, of ``count`` = B samples."""
        first = next(iter(parts.values()))
        if self.sums is None:
            dtype = torch.float32 if first.device.type == "mps" else torch.float64
            self.names, self.sums = tuple(parts), torch.zeros(2, len(parts) + 1, dtype=dtype, device=first.device)
        sums = [part.detach().sum(dtype=self.sums.dtype) for part in parts.values()]
        self.sums += torch.stack([*sums, torch.full_like(sums[0], count)])

    def since_line(self) -> dict[str, float]:
        """Means by name over this rank's samples since the last call; waits for the device."""
        if self.sums is None:
            return {}
        *sums, count = self.sums[1].tolist()
        self.sums[1] = 0
        return self._means(sums, count)

    def of_epoch(self, trainer: L.Trainer) -> dict[str, float]:
        """Means by name over the epoch's samples of all ranks, which all have to call; starts the next epoch."""
        if self.sums is None:
            return {}
        *sums, count = trainer.strategy.reduce(self.sums[0].clone(), reduce_op="sum").tolist()
        self.sums[0] = 0
        return self._means(sums, count)

    def _means(self, sums: list[float], count: float) -> dict[str, float]:
        """By name; nothing where there is no sample, as after a step that was skipped."""
        return {name: total / count for name, total in zip(self.names, sums, strict=True)} if count else {}

    def state(self, trainer: L.Trainer) -> dict[str, Any]:
        """What a checkpoint keeps: the epoch's sums over all ranks, and those of this rank since the last line."""
        if self.sums is None:
            return {}
        epoch = trainer.strategy.reduce(self.sums[0].clone(), reduce_op="sum")
        return {"names": list(self.names), "sums": torch.stack([epoch, self.sums[1]]).cpu()}

    def restore(self, state: Mapping[str, Any], device: torch.device, first_rank: bool) -> None:
        """Take up what a checkpoint keeps: rank 0 gets the sums of all ranks, the others start from nothing."""
        self.sums = None
        if state:
            self.names = tuple(state["names"])
            self.sums = (state["sums"] if first_rank else torch.zeros_like(state["sums"])).to(device)
