"""What one sample is: a key (epoch, index) becomes an image and its target. Fill this in for a new kind of data.

Nothing is opened until a sample is asked for, and a sample depends on its key alone: before each one the loader seeds
Python, NumPy and torch from (seed, epoch, index), so any random transform may be used.
"""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import Dataset

from template.data.index import Index
from template.errors import InputError

Key = tuple[int, int]


class Images(Dataset[tuple[Tensor, Tensor]]):
    """Images of an index.

    Args:
        index: Where the images are and what they are labelled.
        transform: (3, H, W) uint8 to (3, S, S) uint8: what has to be done sample by sample, on the CPU.
    """

    def __init__(self, index: Index, transform: Callable[[Tensor], Tensor]) -> None:
        self.index = index
        self.transform = transform

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, key: Key) -> tuple[Tensor, Tensor]:
        """Image (3, S, S) uint8 and target: int64 scalar, or (K,) float32 for multi-label."""
        _, i = key
        return self.transform(self.read(i)), self.target(i)

    def read(self, i: int) -> Tensor:
        """Sample ``i`` before any transform, (3, H, W) uint8."""
        if self.index.pixels is None:
            return read_image(self.index.root / self.index.paths[i])
        pixels = torch.from_numpy(self.index.pixels[i])
        return pixels.expand(3, -1, -1) if pixels.ndim == 2 else pixels.permute(2, 0, 1)

    def target(self, i: int) -> Tensor:
        """Target of sample ``i``: int64 scalar, or (K,) float32 for multi-label."""
        target = torch.as_tensor(self.index.targets[i])
        return target.to(torch.float32 if target.ndim else torch.int64)


def read_image(path: Path) -> Tensor:
    """Decode an image file upright and in colour, (3, H, W) uint8; alpha is composited on white.

    Raises:
        InputError: The file is missing, damaged or not an image.
    """
    import numpy as np
    from PIL import Image, ImageOps

    try:
        with Image.open(path) as image:
            image.load()
            upright = ImageOps.exif_transpose(image)
            if upright.has_transparency_data:
                rgba = upright.convert("RGBA")
                white = Image.new("RGBA", rgba.size, "white")
                upright = Image.alpha_composite(white, rgba)
            pixels = np.array(upright.convert("RGB"))
    except (OSError, SyntaxError, ValueError) as error:  # PIL raises all three for damaged files
        reason = str(error).replace(str(path), path.name)
        raise InputError(f"cannot read {path}: {reason}; mend or remove the file") from error
    return torch.from_numpy(pixels).permute(2, 0, 1)
