"""Decoded images in a file that every process maps, filled as they are first needed: ``data.cache``."""

import contextlib
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from template.data.index import Index
from template.data.reading import Picture, open_image
from template.data.transforms import Preprocessing
from template.errors import InputError

log = logging.getLogger(__name__)
_FORMAT = 2
_LEVEL = {1: 0, 2: 1, 4: 2, 8: 3}
_COLUMNS = 3 + len(_LEVEL)  # height, width, 1 + scalable; then where each level is, plus 1; 0 is not there yet


class Cache:
    """Uint8 pixels of an index's images after ``Preprocessing.store``, which is decoding and ``data.store_size``.

    An image's place in the file is reserved under a lock and its row in the table is completed after its pixels are
    written, so that any number of workers and processes may fill it. Each resolution at which a JPEG is decoded is
    kept by itself: what is read is bit for bit what decoding gives.

    Args:
        index: The images.
        folder: Of this cache alone; made by ``Cache.of``.
        preprocessing: Its ``store`` comes after decoding.
    """

    def __init__(self, index: Index, folder: Path, preprocessing: Preprocessing) -> None:
        self.index = index
        self.folder = folder
        self.preprocessing = preprocessing
        self._open()

    @classmethod
    def of(cls, index: Index, folder: Path, preprocessing: Preprocessing = Preprocessing()) -> "Cache":
        """The cache of an index below ``folder``, which holds one: it starts anew when files or settings changed.

        Raises:
            InputError: The disk cannot hold it.
        """
        key = _key(index, preprocessing)
        own = folder / key
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("w") as lock, _locked(lock.fileno()):
            if not (own / "complete.json").exists():
                for old in folder.iterdir():
                    if old.is_dir():
                        shutil.rmtree(old)
                        log.info(f"data.cache: {old} is of other files or settings: thrown away")
                _refuse_what_does_not_fit(index, folder, preprocessing)
                own.mkdir()
                (own / "pixels").touch()
                with (own / "table").open("wb") as table:
                    table.truncate(len(index) * _COLUMNS * 8)
                (own / "complete.json").write_text(json.dumps({"format": _FORMAT, "images": len(index)}))
        return cls(index, own, preprocessing)

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("index", "folder", "preprocessing")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    def __len__(self) -> int:
        """Images that are there at some resolution."""
        return int(self.table[:, 3:].any(axis=1).sum())

    def picture(self, i: int) -> Picture:
        """Image ``i``, from the file where it is there, else decoded and kept.

        Raises:
            InputError: The image is damaged, or the disk is full.
        """
        height, width, scalable = self.table[i, :3].tolist()
        source = None
        if not (height and width and scalable):  # another process may be between two of them
            source = self._source(i)
            height, width, scalable = source.height, source.width, 1 + source.scalable

        def decode(divisor: int) -> Tensor:
            place = int(self.table[i, 3 + _LEVEL[divisor]])
            if not place:
                pixels = (source or self._source(i)).decode(divisor)
                self._put(i, divisor, (height, width, scalable), pixels)
                return pixels
            h, w = -(-height // divisor), -(-width // divisor)
            return torch.from_numpy(self._read(place - 1, h * w * 3)).reshape(h, w, 3).permute(2, 0, 1)

        return Picture(height, width, decode, scalable > 1)

    def batch(self, rows: Sequence[int] | np.ndarray, size: int) -> Tensor | None:
        """(B, 3, size, size) uint8 where all the images are there and of that size, else None."""
        entries = self.table[rows, :4]
        if (entries[:, :2] != size).any() or not entries[:, 3].all():
            return None
        n = size * size * 3
        pixels = np.empty((len(rows), n), dtype=np.uint8)
        for row, place in zip(pixels, entries[:, 3].tolist(), strict=True):
            row[:] = self._read(place - 1, n)
        return torch.from_numpy(pixels).view(-1, size, size, 3).permute(0, 3, 1, 2)

    def _source(self, i: int) -> Picture:
        return self.preprocessing.store(open_image(self.index.root / self.index.paths[i]))

    def _open(self) -> None:
        self.table = np.memmap(self.folder / "table", np.int64, "r+", shape=(len(self.index), _COLUMNS)).view(
            np.ndarray
        )
        self._mapped = np.empty(0, dtype=np.uint8)

    def _read(self, start: int, n: int) -> np.ndarray:
        if start + n > len(self._mapped):  # it has grown; mode c: a view may be written to, the file stays
            self._mapped = np.memmap(self.folder / "pixels", np.uint8, "c").view(np.ndarray)
        return self._mapped[start : start + n]

    def _put(self, i: int, divisor: int, about: tuple[int, int, int], pixels: Tensor) -> None:
        content = pixels.permute(1, 2, 0).contiguous().numpy().tobytes()
        try:
            file = os.open(self.folder / "pixels", os.O_RDWR)
            try:
                with _locked(file):
                    start = os.lseek(file, 0, os.SEEK_END)
                    os.ftruncate(file, start + len(content))
                written = 0
                while written < len(content):
                    written += os.pwrite(file, content[written:], start + written)
            finally:
                os.close(file)
        except OSError as error:
            raise InputError(
                f"data.cache: cannot write to {self.folder}: {error}; free space, set data.store_size, or set "
                "data.cache to null"
            ) from error
        self.table[i, :3] = about
        self.table[i, 3 + _LEVEL[divisor]] = start + 1


@contextlib.contextmanager
def _locked(file: int) -> Iterator[None]:
    """Hold a lock of this process, which a process forked from it does not share."""
    import fcntl

    fcntl.lockf(file, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.lockf(file, fcntl.LOCK_UN)


def _key(index: Index, preprocessing: Preprocessing) -> str:
    """Changes when a path, the size or time of a file, or what is stored of it changes."""
    about = np.zeros((len(index), 2), dtype=np.int64)
    for i, path in enumerate(index.paths):
        with contextlib.suppress(OSError):  # a missing file is named when it is read
            stat = os.stat(index.root / path)
            about[i] = stat.st_size, stat.st_mtime_ns
    digest = hashlib.sha256(f"{_FORMAT} {preprocessing.store_size} {index.root.resolve()} {index.fingerprint}".encode())
    digest.update(about.tobytes())
    return digest.hexdigest()[:16]


def _refuse_what_does_not_fit(index: Index, folder: Path, preprocessing: Preprocessing) -> None:
    """Estimate the size from the headers of up to 256 images evenly spread over the index."""
    sizes = []
    for i in np.linspace(0, len(index) - 1, min(len(index), 256)).astype(int):
        with contextlib.suppress(InputError):  # damaged: named when it is read
            picture = open_image(index.root / index.paths[i])
            shorter = min(picture.height, picture.width)
            scale = min(1.0, (preprocessing.store_size or shorter) / shorter)
            sizes.append(3 * picture.height * picture.width * scale**2)
    need = float(np.mean(sizes)) * len(index) if sizes else 0.0
    free = shutil.disk_usage(folder).free
    if need > 0.95 * free:
        raise InputError(
            f"data.cache needs about {need / 1e9:,.1f} GB in {folder} for {len(index):,} images, and "
            f"{free / 1e9:,.1f} GB are free; set data.store_size (now {preprocessing.store_size or 'not set'}), choose "
            "a folder on another disk, or set data.cache to null"
        )
    log.info(f"data.cache: about {need / 1e9:,.2f} GB in {folder}, filled in the first epoch")
