"""What one sample is: a key (epoch, index) becomes an image and its target. Fill this in for a new kind of data.

Nothing is opened until a sample is asked for, and a sample depends on its key alone: before each one the loader seeds
Python, NumPy and torch from (seed, epoch, index), so any random transform may be used.
"""

import os
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from template.data.cache import Cache
from template.data.index import Index
from template.data.reading import Picture, open_image, read_image
from template.randomness import random_states

__all__ = ["Images", "read_image"]
Key = tuple[int, int]


class Images(Dataset[tuple[Tensor, Tensor]]):
    """Images of an index.

    Args:
        index: Where the images are and what they are labelled.
        transform: Picture to (3, S, S) uint8: what has to be done sample by sample, on the CPU. ``picture.pixels()``
            is the whole image, (3, H, W) uint8; asked for less, it is decoded faster.
        cache: Keeps what has been decoded, or None.
        unchanged: Where ``transform`` leaves nothing to chance and returns images of one side as they are, that side,
            in pixels: a batch is then fetched at once.
    """

    def __init__(
        self,
        index: Index,
        transform: Callable[[Picture], Tensor],
        cache: Cache | None = None,
        unchanged: int | None = None,
    ) -> None:
        self.index = index
        self.transform = transform
        self.cache = cache
        self.unchanged = unchanged
        self.root = str(index.root)  # joined as text: half of the time that a Path takes

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, key: Key) -> tuple[Tensor, Tensor]:
        """Image (3, S, S) uint8 and target: int64 scalar, or (K,) float32 for multi-label.

        Change ``batch`` with it, or let that return None: then each sample comes from here.
        """
        _, i = key
        return self.transform(self.picture(i)), self.target(i)

    def picture(self, i: int) -> Picture:
        """Sample ``i`` before any transform."""
        if self.cache is not None:
            return self.cache.picture(i)
        if self.index.pixels is None:
            return open_image(os.path.join(self.root, self.index.paths[i]))
        pixels = torch.from_numpy(self.index.pixels[i])
        return Picture.of(pixels.expand(3, -1, -1) if pixels.ndim == 2 else pixels.permute(2, 0, 1))

    def batch(self, rows: Sequence[int] | np.ndarray) -> Tensor | None:
        """(B, 3, S, S) uint8, the same as one by one; None where ``unchanged`` is, and each sample is to be seeded."""
        size = self.unchanged
        if size is None:
            return None
        pixels = self.index.pixels
        if pixels is not None and pixels.shape[1:3] == (size, size):
            held = torch.from_numpy(pixels[np.asarray(rows)])
            return held[:, None].expand(-1, 3, -1, -1) if held.ndim == 3 else held.permute(0, 3, 1, 2)
        if self.cache is not None and (cached := self.cache.batch(rows, size)) is not None:
            return cached
        images, states = np.empty((len(rows), size, size, 3), dtype=np.uint8), random_states()
        for image, i in zip(images, np.asarray(rows).tolist(), strict=True):
            made = self.transform(self.picture(i))
            if made.dtype != torch.uint8 or made.shape != (3, size, size):
                return None  # one by one the checks name it
            image[:] = made.permute(1, 2, 0).numpy()
        if random_states() != states:
            self.unchanged = None  # ``transform`` draws after all: from now on each sample is seeded
            return None
        return torch.from_numpy(images).permute(0, 3, 1, 2)

    def target(self, i: int) -> Tensor:
        """Target of sample ``i``: int64 scalar, or (K,) float32 for multi-label."""
        return self.targets([i])[0]

    def targets(self, rows: Sequence[int] | np.ndarray) -> Tensor:
        """(B,) int64, or (B, K) float32 for multi-label."""
        targets = torch.from_numpy(self.index.targets[np.asarray(rows)])
        return targets.to(torch.float32 if targets.ndim == 2 else torch.int64)
