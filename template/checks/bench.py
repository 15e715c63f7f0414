"""Steps of a module on its data without a fit: what the checks of learning and speed are made with."""

import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import cached_property
from typing import Any

import lightning.pytorch as L
import torch
from torch import Tensor, nn

from template.data.datamodule import Batch, DataModule
from template.model.module import Classifier
from template.randomness import epoch_order

_STEP_SECONDS = 0.5  # of one step in a check


class Bench:
    """Runs the real step of a module on the real batches, under the Trainer's precision and on its device.

    Args:
        data: Where the batches come from.
        module: The module; its weights stay as they are, for the steps are done on copies.
        trainer: Gives device, precision, accumulation and number of processes; it is not run.
    """

    def __init__(self, data: DataModule, module: Classifier, trainer: L.Trainer) -> None:
        self.data = data
        self.module = module
        self.trainer = trainer
        self.device = trainer.strategy.root_device
        data.trainer = trainer
        trainer.strategy.connect(module)
        self.train_loader: Any = data.train_dataloader()
        self.val_loader: Any = data.val_dataloader()
        self.sampler: Any = self.train_loader.batch_sampler
        self.batch_size = -(-data.global_batch_size // (trainer.world_size * trainer.accumulate_grad_batches))
        self.batch_size = min(self.batch_size, len(data.splits["train"]))

    @cached_property
    def few(self) -> int:
        """Samples of the steps that only look: up to 32, fewer where such a step takes more than half a second."""
        module, batch = self.copy(), self.batch(self.keys(min(4, self.batch_size)))
        still = torch.optim.SGD(module.parameters(), lr=0.0)
        each = self.seconds(lambda: self.step(module, still, batch), most=1) / len(batch["image"])
        return max(1, min(32, self.batch_size, max(4, int(_STEP_SECONDS / each))))

    def keys(self, n: int, split: str = "train", epoch: int = 0) -> list[tuple[int, int]]:
        """Keys of ``n`` samples in the order of an epoch, of validation too: its first ones may be of one class."""
        return [(epoch, row) for row in epoch_order(len(self.data.splits[split]), self.data.seed, epoch)[:n].tolist()]

    def batch(self, keys: Sequence[tuple[int, int]], split: str = "train", training: bool = True) -> Batch:
        """The samples as the network sees them, on the device; with augmentation where ``training`` is true."""
        dataset = self.train_loader.dataset if split == "train" else self.val_loader.dataset
        return self.transferred(dataset.__getitems__(list(keys)), training)

    def transferred(self, raw: Batch, training: bool) -> Batch:
        """A batch of a loader, moved to the device and transformed there."""
        setattr(self.trainer, "training" if training else "validating", True)
        batch = {name: value.to(self.device) for name, value in raw.items()}
        return self.data.on_after_batch_transfer(batch, 0)

    def copy(self) -> Classifier:
        """A copy of the module on the device, whose steps leave the original alone."""
        trainer, self.module._trainer = self.module._trainer, None
        copy = deepcopy(self.module)
        self.module._trainer = trainer
        copy.trainer = self.trainer
        return copy.to(self.device).train()

    def step(self, module: Classifier, optimizer: torch.optim.Optimizer, batch: Batch) -> Tensor:
        """Forward, backward and optimizer step of the module's own ``training_step``; returns the loss."""
        self.trainer.training = True
        optimizer.zero_grad()
        with self.trainer.precision_plugin.forward_context():
            loss = module.training_step(batch, 0)
        loss.backward()
        optimizer.step()
        return loss.detach()

    def logits(self, module: nn.Module, images: Tensor) -> Tensor:
        with torch.no_grad(), self.trainer.precision_plugin.forward_context():
            return module(images).float()

    def seconds(self, action: Callable[[], object], most: int = 10, limit: float = 5.0) -> float:
        """Median time of an action after one that is not counted, of up to ``most`` within ``limit`` seconds."""
        action()
        self.wait()
        times: list[float] = []
        end = time.perf_counter() + limit
        while len(times) < most and (not times or time.perf_counter() < end):
            start = time.perf_counter()
            action()
            self.wait()
            times.append(time.perf_counter() - start)
        return sorted(times)[len(times) // 2]

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
