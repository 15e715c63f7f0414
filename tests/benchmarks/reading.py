"""Photographs to crops of the network's size, on one core: python tests/benchmarks/reading.py (a minute)

Everything reads its files and is compared with bare decoding, or the classic pipeline, of the same run.
"""

import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from compare import Rows, alternate, median_ratio
from PIL import Image
from sklearn.datasets import load_sample_images
from torch import Tensor
from torchvision.io import ImageReadMode, decode_image, read_file
from torchvision.transforms import v2

import template.data.reading as reading
from template.data.cache import Cache
from template.data.datamodule import KeyedBatches
from template.data.dataset import Images
from template.data.index import Index
from template.data.packed import PackedStrings
from template.data.transforms import Augmentation, Preprocessing, TrainTransform

warnings.filterwarnings("ignore", category=DeprecationWarning)  # torchvision's decoding, the measure of all here
BATCH = 32


def photographs(folder: Path, width: int, height: int, n: int) -> Index:
    """scikit-learn's two photographs in the given size, by turns."""
    for i, pixels in enumerate(load_sample_images().images):
        image = Image.fromarray(pixels).resize((width, height), Image.Resampling.LANCZOS)
        for copy in range(i, n, 2):
            image.save(folder / f"{copy:03d}.jpg", quality=90)
    names = PackedStrings(f"{i:03d}.jpg" for i in range(n))
    return Index(folder, names, np.arange(n) % 2, ("china", "flower"))


def bare_decoding(index: Index) -> Callable[[], None]:
    def run() -> None:
        for path in index.paths:
            decode_image(read_file(str(index.root / path)), mode=ImageReadMode.RGB)

    return run


def classic(index: Index) -> Callable[[], None]:
    """PIL to a float tensor, as most training scripts have it."""
    transform = v2.Compose(
        [
            v2.RandomResizedCrop(224),
            v2.PILToTensor(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ]
    )

    def run() -> None:
        images = []
        for path in index.paths:
            with Image.open(index.root / path) as image:
                images.append(transform(image.convert("RGB")))
        torch.stack(images)

    return run


def pipeline(index: Index, cache: Cache | None = None) -> Callable[[], None]:
    """The template's training batches: decode, random-resized crop to 224, uint8."""
    transform = TrainTransform(Preprocessing(size=224), Augmentation(crop_scale=0.08))
    batches = KeyedBatches(Images(index, transform, cache=cache), seed=0)
    epoch = 0

    def run() -> None:
        nonlocal epoch
        epoch += 1
        for start in range(0, len(index), BATCH):
            image: Tensor = batches.__getitems__([(epoch, i) for i in range(start, min(start + BATCH, len(index)))])[
                "image"
            ]
            assert image.shape[1:] == (3, 224, 224)

    return run


def main() -> None:
    torch.set_num_threads(1)
    rows = Rows(f"Reading on one core, simplejpeg {'installed' if reading.simplejpeg else 'not installed'}")
    with tempfile.TemporaryDirectory() as folder:
        small = Path(folder) / "small"
        small.mkdir()
        index = photographs(small, 500, 375, 64)
        cache = Cache.of(index, Path(folder) / "cache")
        cached = pipeline(index, cache)
        cached()
        contestants = {
            "bare": bare_decoding(index),
            "classic": classic(index),
            "pipeline": pipeline(index),
            "cached": cached,
        }
        simplejpeg, reading.simplejpeg = reading.simplejpeg, None
        plain = pipeline(index)
        reading.simplejpeg = simplejpeg

        def without() -> None:
            reading.simplejpeg = None
            plain()
            reading.simplejpeg = simplejpeg

        seconds = alternate({**contestants, "PIL": without}, clock=time.process_time)
        rows.plain("500x375, bare torchvision decoding", 64 / min(seconds["bare"]), "images/s")
        rows.plain("500x375, classic pipeline / bare", median_ratio(seconds["bare"], seconds["classic"]))
        rows.at_least(
            "500x375, training pipeline / bare decoding", median_ratio(seconds["bare"], seconds["pipeline"]), 0.58
        )
        rows.plain("500x375, the same without the extra 'speed'", median_ratio(seconds["bare"], seconds["PIL"]))
        rows.at_least(
            "500x375, second epoch with data.cache / bare", median_ratio(seconds["bare"], seconds["cached"]), 1.5
        )

        large = Path(folder) / "large"
        large.mkdir()
        index = photographs(large, 4000, 3000, 6)
        seconds = alternate(
            {"classic": classic(index), "pipeline": pipeline(index), "bare": bare_decoding(index)}, rounds=5
        )
        rows.at_least(
            "12 megapixels, training pipeline / classic", median_ratio(seconds["classic"], seconds["pipeline"]), 4
        )
        rows.plain(
            "12 megapixels, training pipeline / bare decoding", median_ratio(seconds["bare"], seconds["pipeline"])
        )
    rows.finish()


if __name__ == "__main__":
    main()
