"""Small image files of class folders, made on the spot."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image


def picture(seed: int, height: int = 12, width: int = 16) -> np.ndarray:
    """(height, width, 3) uint8: a picture that differs from that of any other seed and is not symmetric."""
    coarse = np.random.default_rng(seed).integers(0, 256, (3, 4, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BILINEAR))


def save(path: Path, pixels: np.ndarray) -> Path:
    """Write an image file, and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return path


def class_folders(root: Path, names: Sequence[str], each: int = 3, suffix: str = ".png") -> Path:
    """Write ``each`` pictures for every class below ``root``, each of another seed."""
    for number, name in enumerate(names):
        for i in range(each):
            save(root / name / f"{i}{suffix}", picture(1000 * number + i))
    return root
