"""What one sample is: a key (epoch, index) becomes an image and its target. Fill this in for a new kind of data.

Nothing is opened until a sample is asked for, and a sample depends on its key alone: before each one the loader seeds
Python, NumPy and torch from (seed, epoch, index), so any random transform may be used.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.data import Dataset

from template.data.index import Index
from template.data.reading import Picture, open_image, read_image

__all__ = ["Images", "read_image"]
Key = tuple[int, int]


class Images(Dataset[tuple[Tensor, Tensor]]):
    """Images of an index.

    Args:
        index: Where the images are and what they are labelled.
        transform: Picture to (3, S, S) uint8: what has to be done sample by sample, on the CPU. ``picture.pixels()``
            is the whole image, (3, H, W) uint8; asked for less, it is decoded faster.
    """

    def __init__(self, index: Index, transform: Callable[[Picture], Tensor]) -> None:
        self.index = index
        self.transform = transform

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, key: Key) -> tuple[Tensor, Tensor]:
        """Image (3, S, S) uint8 and target: int64 scalar, or (K,) float32 for multi-label."""
        _, i = key
        return self.transform(self.picture(i)), self.target(i)

    def picture(self, i: int) -> Picture:
        """Sample ``i`` before any transform."""
        if self.index.pixels is None:
            return open_image(self.index.root / self.index.paths[i])
        pixels = torch.from_numpy(self.index.pixels[i])
        return Picture.of(pixels.expand(3, -1, -1) if pixels.ndim == 2 else pixels.permute(2, 0, 1))

    def target(self, i: int) -> Tensor:
        """Target of sample ``i``: int64 scalar, or (K,) float32 for multi-label."""
        target = torch.as_tensor(self.index.targets[i])
        return target.to(torch.float32 if target.ndim else torch.int64)
