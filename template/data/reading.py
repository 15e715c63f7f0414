"""An image file becomes pixels: any format, upright, in colour, alpha on white, decoded no finer than it is needed."""

import contextlib
import io
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image, JpegImagePlugin, UnidentifiedImageError
from torch import Tensor

from template.errors import InputError

try:  # the extra ``speed``
    import simplejpeg
except ImportError:
    simplejpeg = None

#: Decoding at 1/2, 1/4 or 1/8 leaves at least this many times the pixels, along a side, that the result has. With 1.5
#: the mean difference from exact decoding was at most 1.8 of 255 levels on detailed photographs, with 1 it was 4.1.
MARGIN = 1.5
_ORIENTATION = 0x0112  # the EXIF tag


class Picture:
    """An image whose pixels are made when they are asked for.

    Args:
        height: Of the whole image, upright, in pixels.
        width: The same.
        decode: From the divisor of height and width, 1 or where ``scalable`` also 2, 4 or 8, to (3, H, W) uint8; odd
            sizes are rounded up.
        scalable: Whether pixels can be had coarser at less cost.
    """

    def __init__(self, height: int, width: int, decode: Callable[[int], Tensor], scalable: bool = False) -> None:
        self.height = height
        self.width = width
        self.decode = decode
        self.scalable = scalable

    @classmethod
    def of(cls, image: "Tensor | Picture") -> "Picture":
        """Pixels that are there already, (3, H, W) uint8; a picture stays what it is."""
        return image if isinstance(image, Picture) else cls(image.shape[-2], image.shape[-1], lambda divisor: image)

    def pixels(self, reduction: float = 1.0) -> Tensor:
        """(3, H, W) uint8, for a caller who is about to make it smaller by ``reduction``: H and W are then the whole
        image's, or these by 2, 4 or 8 where the format allows it at little cost.

        Raises:
            InputError: The file is damaged.
        """
        divisors = (8, 4, 2, 1) if self.scalable else (1,)
        return self.decode(next(divisor for divisor in divisors if divisor == 1 or divisor * MARGIN <= reduction))


def open_image(path: Path | str) -> Picture:
    """An image file of any of the formats, of which so far the header has been decoded.

    Raises:
        InputError: The file is missing, damaged, not an image, or of a kind with no agreed meaning as colours.
    """
    try:
        with open(path, "rb", buffering=0) as file:
            data = file.read()
        image = Image.open(io.BytesIO(data))
        orientation = image.getexif().get(_ORIENTATION, 1)
    except Exception as error:  # for damaged files PIL raises a dozen kinds
        raise _unreadable(path, error) from error
    width, height = image.size
    jpeg = isinstance(image, JpegImagePlugin.JpegImageFile) and image.mode in ("RGB", "L")
    opened = [image]  # for the first decoding: to parse the header again takes a tenth of the time

    def decode(divisor: int) -> Tensor:
        try:
            with opened.pop() if opened else Image.open(io.BytesIO(data)) as image:
                pixels = _decode_jpeg(image, data, divisor) if jpeg else _decode_any(image)
        except Exception as error:
            raise _unreadable(path, error) from error
        return _upright(pixels, orientation)

    if orientation in (5, 6, 7, 8):
        height, width = width, height
    return Picture(height, width, decode, scalable=jpeg)


def read_image(path: Path) -> Tensor:
    """Decode an image file upright and in colour, (3, H, W) uint8; alpha is composited on white.

    Raises:
        InputError: As ``open_image`` and ``Picture.pixels`` do.
    """
    return open_image(path).pixels()


def _decode_jpeg(image: Image.Image, data: bytes, divisor: int) -> Tensor:
    """(3, H, W) uint8; simplejpeg makes the same pixels as PIL in about 0.6 of its time."""
    if simplejpeg is not None:
        least = {"min_height": -(-image.height // divisor), "min_width": -(-image.width // divisor)}
        with contextlib.suppress(ValueError):  # PIL says better what is wrong, and is the judge of it
            return torch.from_numpy(simplejpeg.decode_jpeg(data, **least)).permute(2, 0, 1)
    image.draft(None, (image.width // divisor, image.height // divisor))
    image.load()
    return _tensor(image)


def _decode_any(image: Image.Image) -> Tensor:
    image.load()
    if image.mode == "F":
        raise ValueError("it holds 32-bit floating-point numbers; convert it to 8 or 16 bits")
    if image.mode.startswith("I"):  # 16 bits, or 32 that may hold 16
        values = np.asarray(image)
        if values.min() < 0 or values.max() > 0xFFFF:
            raise ValueError("it holds 32-bit numbers above 65535; convert it to 8 or 16 bits")
        return torch.from_numpy((values >> 8).astype(np.uint8)).expand(3, -1, -1)
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        return _tensor(Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba))
    return _tensor(image)


def _tensor(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(image if image.mode == "RGB" else image.convert("RGB"))).permute(2, 0, 1)


def _upright(pixels: Tensor, orientation: int) -> Tensor:
    """Undo one of the eight EXIF orientations: from 5 on the axes are exchanged."""
    if orientation in (5, 6, 7, 8):
        pixels = pixels.transpose(1, 2)
    flips = {2: [2], 3: [1, 2], 4: [1], 6: [2], 7: [1, 2], 8: [1]}.get(orientation)
    return pixels.flip(flips) if flips else pixels


def _unreadable(path: Path | str, error: Exception) -> InputError:
    unknown = isinstance(error, UnidentifiedImageError)  # its text has the address of a buffer
    reason = "cannot identify image file" if unknown else str(error).replace(str(path), os.path.basename(path))
    return InputError(f"cannot read {path}: {reason}; mend or remove the file")
