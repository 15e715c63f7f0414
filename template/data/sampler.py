"""The order of training: an epoch's permutation, cut into global batches, cut into pieces for ranks and accumulation.

Each global batch is one optimizer step. It is cut into (ranks x accumulation) nearly even pieces; the last one of an
epoch, which may be smaller, into as many batches a rank as have a sample for every rank. So every rank knows how many
samples its window holds without asking.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils.data import Sampler

from template.errors import InputError
from template.randomness import epoch_order

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

Key = tuple[int, int]


def cut(n: int, pieces: int, piece: int) -> tuple[int, int]:
    """Start and end of one of ``pieces`` nearly even parts of ``range(n)``; sizes differ by at most one."""
    return n * piece // pieces, n * (piece + 1) // pieces


class TrainSampler(Sampler[list[Key]]):
    """Batches of keys for one rank, at an exact position.

    Args:
        n: Samples in the training split.
        global_batch_size: Samples in one optimizer step, over all ranks and accumulated batches.
        seed: The run's seed.
        ranks: Number of processes.
        rank: This process's number.
        accumulation: Batches that one rank accumulates in one optimizer step.
        order: From an epoch to the (n,) indices of its samples, some perhaps more than once; None is a permutation.
        position: From the batches in an epoch to the (epoch, batches already done in it) that an iterator starts from.
            It is asked each time: a loader with workers makes two iterators where one would do, so none may count.

    Raises:
        InputError: The global batch, or the split, is too small to give every piece a sample.
    """

    def __init__(
        self,
        n: int,
        global_batch_size: int,
        seed: int,
        ranks: int = 1,
        rank: int = 0,
        accumulation: int = 1,
        position: Callable[[int], tuple[int, int]] = lambda length: (0, 0),
        order: Callable[[int], np.ndarray] | None = None,
    ) -> None:
        pieces = ranks * accumulation
        if global_batch_size < pieces:
            raise InputError(
                f"data.global_batch_size is {global_batch_size}; {ranks} process(es) x {accumulation} accumulated "
                f"batch(es) need at least {pieces}"
            )
        if n < ranks:
            raise InputError(f"the training split has {n} samples for {ranks} processes; each needs at least one")
        self.n = n
        self.global_batch_size = global_batch_size
        self.seed = seed
        self.ranks = ranks
        self.rank = rank
        self.accumulation = accumulation
        full, tail = divmod(n, global_batch_size)
        tail_batches = min(accumulation, tail // ranks)
        self.dropped = 0 if tail_batches else tail
        self.batches = full * accumulation + tail_batches
        self.position = position
        self.order = order or partial(epoch_order, n, seed)

    def __len__(self) -> int:
        """Batches in an epoch on this rank, whatever the position: the Trainer counts them from the epoch's start."""
        return self.batches

    @property
    def smallest_batch(self) -> int:
        """Samples in the smallest batch of an epoch, over all ranks."""
        last = (self.batches - 1) // self.accumulation
        return min(size // (self.ranks * batches) for size, batches in (self._window(0), self._window(last)))

    def window_size(self, batch: int, limit: int | None = None) -> int:
        """Samples over all ranks in the accumulation window that a batch belongs to.

        Args:
            batch: The batch's number in its epoch.
            limit: Batches of the epoch that are run, where ``limit_train_batches`` ends it early, perhaps in a window.
        """
        step = batch // self.accumulation
        size, batches = self._window(step)
        run = batches if limit is None else min(batches, limit - step * self.accumulation)
        return cut(size, self.ranks * batches, self.ranks * run - 1)[1]

    def __iter__(self) -> Iterator[list[Key]]:
        return self._batches(*self.position(len(self)))

    def _batches(self, epoch: int, start: int) -> Iterator[list[Key]]:
        order = self.order(epoch)
        epochs = epoch + (repeats(order) << 32)  # a sample's second time in an epoch draws other random numbers
        for batch in range(start, len(self)):
            step, micro_batch = divmod(batch, self.accumulation)
            size, batches = self._window(step)
            first, last = cut(size, self.ranks * batches, micro_batch * self.ranks + self.rank)
            offset = step * self.global_batch_size
            part = slice(offset + first, offset + last)
            yield [*zip(epochs[part].tolist(), order[part].tolist(), strict=True)]

    def _window(self, step: int) -> tuple[int, int]:
        """Samples over all ranks, and batches a rank, of one optimizer step."""
        size = min(self.global_batch_size, self.n - self.dropped - step * self.global_batch_size)
        return size, min(self.accumulation, self.batches - step * self.accumulation)


def repeats(order: np.ndarray) -> np.ndarray:
    """How often each entry of an order was there before: [3, 1, 3, 3] gives [0, 0, 1, 2]."""
    by_value = np.argsort(order, kind="stable")
    values = order[by_value]
    starts = np.flatnonzero(np.r_[True, values[1:] != values[:-1]])
    counts = np.arange(len(order)) - np.repeat(starts, np.diff(np.r_[starts, len(order)]))
    return counts[np.argsort(by_value)]


class EvalSampler(Sampler[list[Key]]):
    """Batches of keys for one rank of an evaluation: every sample once, in order, none repeated to fill a rank.

    Attributes:
        common: Number of batches that every rank has; some have one more.

    Raises:
        InputError: The split has fewer samples than there are processes.
    """

    def __init__(self, n: int, batch_size: int, ranks: int = 1, rank: int = 0, split: str = "val") -> None:
        if n < ranks:
            raise InputError(f"the {split} split has {n} samples for {ranks} processes; each needs at least one")
        self.batch_size = batch_size
        self.common = math.ceil(n // ranks / batch_size)
        self.first, self.last = cut(n, ranks, rank)

    def __len__(self) -> int:
        return math.ceil((self.last - self.first) / self.batch_size)

    def __iter__(self) -> Iterator[list[Key]]:
        for start in range(self.first, self.last, self.batch_size):
            yield [(0, index) for index in range(start, min(start + self.batch_size, self.last))]


def trainer_position(trainer: "Trainer") -> Callable[[int], tuple[int, int]]:
    """Where the Trainer is: a function from the batches in an epoch to (epoch, batches done).

    Lightning restores its counters before it makes the first iterator, and neither calls a batch sampler's
    ``set_epoch`` nor skips batches itself: a plain loader resumed in mid-epoch starts at the front and stops early.
    """

    def position(length: int) -> tuple[int, int]:
        loop = trainer.fit_loop
        progress: Any = loop.epoch_progress.current
        epoch = progress.processed
        start = loop.epoch_loop.batch_progress.current.ready if loop.restarting else 0
        if start >= length:  # saved at the end of an epoch: after its last batch or after its validation
            return epoch + (progress.processed < progress.ready), 0
        return epoch, start

    return position
