"""The pair of transforms: per sample on the CPU in uint8, per batch on the device in float.

``Preprocessing`` is the deterministic half that training, validation, prediction and export share, and that a
checkpoint carries. ``Augmentation`` is the random half that training adds. Device draws are functions of each
sample's key, so they need no generator and no synchronisation, and every sample of a batch is drawn on its own.
"""

import math
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from template.data.reading import Picture
from template.errors import InputError
from template.randomness import keyed_uniforms

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Preprocessing:
    """How an image becomes the network's input, without chance.

    Attributes:
        size: Side of the square that the network sees, in pixels.
        resize: Shorter side before the centre is cut out, in pixels; None is the same as ``size``.
        mean: Subtracted from red, green and blue, as fractions of 255.
        std: Divides red, green and blue afterwards, as fractions of 255.
        store_size: Shorter side, in pixels, to which larger images are brought before anything else; None is as they
            are. It is ``data.store_size``.
    """

    size: int = 224
    resize: int | None = None
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD
    store_size: int | None = None

    def __post_init__(self) -> None:
        for name in ("mean", "std"):
            value = tuple(float(number) for number in getattr(self, name))
            object.__setattr__(self, name, value)
            if len(value) != 3 or not all(math.isfinite(number) for number in value):
                raise InputError(f"preprocessing.{name} is {list(value)}; expected 3 numbers: red, green, blue")
        if min(self.std) <= 0:
            raise InputError(f"preprocessing.std is {list(self.std)}; every number must be above 0")
        if self.size < 1 or (self.resize is not None and self.resize < self.size):
            raise InputError(
                f"preprocessing.size is {self.size} and .resize {self.resize}; expected 1 <= size <= resize, in pixels"
            )
        if self.store_size is not None and self.store_size < (self.resize or self.size):
            raise InputError(
                f"data.store_size is {self.store_size}, and preprocessing needs {self.resize or self.size} pixels; "
                "store as many or more"
            )

    def store(self, image: Tensor | Picture) -> Picture:
        """Bring the shorter side down to ``store_size``: what a cache keeps. Done twice it changes nothing."""
        picture = Picture.of(image)
        shorter, size = min(picture.height, picture.width), self.store_size
        if size is None or shorter <= size:
            return picture
        return Picture.of(_shorter(picture.pixels(shorter / size), size))

    def sample(self, image: Tensor | Picture) -> Tensor:
        """Resize the shorter side and cut out the centre: a picture or (3, H, W) uint8 to (3, size, size) uint8."""
        shorter = self.resize or self.size
        picture = self.store(image)
        pixels = picture.pixels(min(picture.height, picture.width) / shorter)
        if min(pixels.shape[-2:]) != shorter:
            pixels = _shorter(pixels, shorter)
        return F.center_crop(pixels, [self.size, self.size]) if pixels.shape[-2:] != (self.size, self.size) else pixels

    def normalise(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) uint8, or float in [0, 1], to normalised float32 in channels_last memory.

        There a row's colours lie side by side: with mean and std repeated along it, and in place, a CPU needs a quarter
        of the time of ``normalise_unit``, whose values these are.
        """
        batch, colours, height, width = images.shape
        rows = images.permute(0, 2, 3, 1).reshape(batch, height, width * colours)
        mean, std = _along_row(self.mean, width, images.device), _along_row(self.std, width, images.device)
        rows = rows.float().div_(255).sub_(mean) if images.dtype == torch.uint8 else rows - mean
        return rows.div_(std).view(batch, height, width, colours).permute(0, 3, 1, 2)

    def normalise_unit(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) float in [0, 1] to normalised float, for the graph of an exported file."""
        mean = torch.tensor(self.mean, device=images.device)[:, None, None]
        std = torch.tensor(self.std, device=images.device)[:, None, None]
        return (images - mean) / std

    def to_dict(self) -> dict[str, Any]:
        """Plain types, for a checkpoint; ``Preprocessing(**d)`` is the way back."""
        plain = asdict(self)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in plain.items()}


@dataclass(frozen=True)
class Augmentation:
    """What training changes at random; each default leaves images as they are.

    Attributes:
        crop_scale: Least share of the image's area that a random crop covers, resized to ``size``; None cuts none.
        trivial_augment: One random operation a sample, of random strength (TrivialAugment, arXiv:2103.10158).
        shift: Largest move in each direction, in pixels of the network's input; what enters is black.
        flip: Probability of a left-right flip.
        brightness: Brightness is multiplied by a factor in [1 - b, 1 + b].
        contrast: The distance to the image's mean is multiplied by a factor in [1 - c, 1 + c].
        erase: Probability that a rectangle of 2 to 33 % of the area becomes the mean colour (arXiv:1708.04896).
        mixup: Alpha of mixup's Beta distribution (arXiv:1710.09412); 0 is off.
        cutmix: Alpha of cutmix's Beta distribution (arXiv:1905.04899); 0 is off. With both, each gets half the samples.
    """

    crop_scale: float | None = None
    trivial_augment: bool = False
    shift: int = 0
    flip: float = 0.0
    brightness: float = 0.0
    contrast: float = 0.0
    erase: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0

    def __post_init__(self) -> None:
        for name in ("flip", "erase", "brightness", "contrast"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"augmentation.{name} is {getattr(self, name)}; expected 0 to 1")
        for name in ("shift", "mixup", "cutmix"):
            if getattr(self, name) < 0:
                raise InputError(f"augmentation.{name} is {getattr(self, name)}; expected 0 or more")
        if self.crop_scale is not None and not 0 < self.crop_scale <= 1:
            raise InputError(f"augmentation.crop_scale is {self.crop_scale}; expected above 0 and at most 1, or null")


class TrainTransform:
    """The per-sample half of training: a picture, or (3, H, W) uint8, to (3, size, size) uint8."""

    def __init__(self, preprocessing: Preprocessing, augmentation: Augmentation) -> None:
        self.preprocessing = preprocessing
        self.crop_scale = augmentation.crop_scale
        self.trivial = v2.TrivialAugmentWide() if augmentation.trivial_augment else None

    def __call__(self, image: Tensor | Picture) -> Tensor:
        if self.crop_scale is None:
            image = self.preprocessing.sample(image)
        else:
            image = self._crop(self.preprocessing.store(image), self.crop_scale)
        return image if self.trivial is None else self.trivial(image)

    def _crop(self, picture: Picture, least_area: float) -> Tensor:
        size = self.preprocessing.size
        top, left, height, width = random_crop_box(picture.height, picture.width, least_area)
        pixels = picture.pixels(min(height, width) / size)
        down, right = pixels.shape[-2] / picture.height, pixels.shape[-1] / picture.width
        rows = slice(round(top * down), max(round((top + height) * down), round(top * down) + 1))
        columns = slice(round(left * right), max(round((left + width) * right), round(left * right) + 1))
        return _resize(pixels[:, rows, columns], size, size)


def random_crop_box(height: int, width: int, least_area: float) -> tuple[int, int, int, int]:
    """Top, left, height and width, in pixels, of a random crop of 3:4 to 4:3 (Inception, arXiv:1409.4842).

    The area is uniform in [least_area, 1] of the image's and the logarithm of the aspect uniform; a box that does not
    fit is cut to the image instead of drawn again, so that one call takes four numbers of the sample's generator.
    """
    area, aspect, down, right = torch.rand(4, dtype=torch.float64).tolist()
    area = (least_area + (1 - least_area) * area) * height * width
    aspect = math.exp((2 * aspect - 1) * math.log(4 / 3))
    crop_height = max(1, min(height, round(math.sqrt(area / aspect))))
    crop_width = max(1, min(width, round(math.sqrt(area * aspect))))
    return round(down * (height - crop_height)), round(right * (width - crop_width)), crop_height, crop_width


class DeviceTransform:
    """The per-batch half of training, on whatever device the batch is.

    Args:
        preprocessing: Normalisation.
        augmentation: What to change at random.
        classes: K, for the targets that mixing softens.
        seed: The run's seed.
    """

    def __init__(self, preprocessing: Preprocessing, augmentation: Augmentation, classes: int, seed: int) -> None:
        self.preprocessing = preprocessing
        self.augmentation = augmentation
        self.classes = classes
        self.seed = seed
        self.mixes = bool(augmentation.mixup or augmentation.cutmix)
        on_device = replace(augmentation, crop_scale=None, trivial_augment=False)
        self.draws = on_device != Augmentation()
        self.beta_quantiles = {a: _beta_quantiles(a) for a in {augmentation.mixup, augmentation.cutmix} if a}

    def __call__(self, images: Tensor, targets: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """(B, 3, H, W) uint8, targets and (B, 2) keys to float images and targets, (B, K) float where mixed."""
        a = self.augmentation
        if not self.draws:
            return self.preprocessing.normalise(images), targets
        u = keyed_uniforms(self.seed, keys, 14)[:, :, None, None, None]  # (B, 14, 1, 1, 1)
        if a.shift:
            images = _shift(images, u[:, 0], u[:, 1], a.shift)
        images = _unit(images)
        if a.brightness:
            images = (images * (1 + a.brightness * (2 * u[:, 2] - 1))).clamp(0, 1)
        if a.contrast:
            mean = images.mean(dim=(1, 2, 3), keepdim=True)
            images = (mean + (images - mean) * (1 + a.contrast * (2 * u[:, 3] - 1))).clamp(0, 1)
        if a.flip:
            images = torch.where(u[:, 4] < a.flip, images.flip(-1), images)
        images = self.preprocessing.normalise(images)
        if a.erase:
            area, log_aspect = 0.02 + 0.31 * u[:, 6], (2 * u[:, 7] - 1) * math.log(10 / 3)
            erased = _box(images.shape, area, log_aspect, u[:, 8], u[:, 9]) & (u[:, 5] < a.erase)
            images = images.masked_fill(erased, 0.0)
        if self.mixes:
            images, targets = self._mix(images, targets, u)
        return images.contiguous(memory_format=torch.channels_last), targets

    def _mix(self, images: Tensor, targets: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """Mix each sample with the one after it: the order of an epoch is random, so any partner is as good."""
        a = self.augmentation
        other_images, other_targets = images.roll(-1, 0), self._soft(targets.roll(-1, 0))
        cuts = u[:, 10] < (0.5 if a.mixup and a.cutmix else float(bool(a.cutmix)))
        share = torch.ones_like(u[:, 11])
        mixed = images
        if a.mixup:
            share = self._beta(a.mixup, u[:, 11])
            mixed = other_images + share * (images - other_images)
        if a.cutmix:
            box = _box(images.shape, 1 - self._beta(a.cutmix, u[:, 11]), torch.zeros_like(share), u[:, 12], u[:, 13])
            mixed = torch.where(cuts, torch.where(box, other_images, images), mixed)
            share = torch.where(cuts, 1 - box.float().mean(dim=(2, 3), keepdim=True), share)
        share = share.reshape(-1, 1)
        return mixed, share * self._soft(targets) + (1 - share) * other_targets

    def _soft(self, targets: Tensor) -> Tensor:
        if targets.ndim == 2:
            return targets.float()
        return torch.zeros(len(targets), self.classes, device=targets.device).scatter_(1, targets[:, None], 1.0)

    def _beta(self, alpha: float, u: Tensor) -> Tensor:
        table = self.beta_quantiles[alpha].to(u.device)
        return table[(u * (len(table) - 1)).round().long()]


def _shorter(image: Tensor, side: int) -> Tensor:
    """Bring the shorter side to ``side`` and keep the aspect: (3, H, W) uint8 to the same."""
    height, width = image.shape[-2:]
    if height <= width:
        return _resize(image, side, int(side * width / height))
    return _resize(image, int(side * height / width), side)


def _resize(image: Tensor, height: int, width: int) -> Tensor:
    """(3, H, W) uint8 to (3, height, width) uint8, antialiased; colour by colour in memory it takes 0.6 of the time."""
    batch = image[None].contiguous(memory_format=torch.channels_last)
    return torch.nn.functional.interpolate(batch, (height, width), mode="bilinear", antialias=True)[0]


@cache
def _along_row(values: tuple[float, ...], width: int, device: torch.device) -> Tensor:
    """(3 * width,) values of red, green and blue by turns; made once, because a copy to a device waits for it."""
    with torch.inference_mode(False):
        return torch.tensor(values, device=device).repeat(width)


def _unit(images: Tensor) -> Tensor:
    return images.float() / 255 if images.dtype == torch.uint8 else images


def _shift(images: Tensor, u: Tensor, v: Tensor, pixels: int) -> Tensor:
    """Move each image by up to ``pixels`` down or up and right or left."""
    height, width = images.shape[-2:]
    padded = torch.nn.functional.pad(images, [pixels] * 4)
    rows = torch.arange(height, device=images.device) + (u.reshape(-1, 1) * (2 * pixels + 1)).long()
    columns = torch.arange(width, device=images.device) + (v.reshape(-1, 1) * (2 * pixels + 1)).long()
    batch = torch.arange(len(images), device=images.device)[:, None, None]
    return padded.permute(0, 2, 3, 1)[batch, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def _box(shape: torch.Size, area: Tensor, log_aspect: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """(B, 1, H, W) mask of a rectangle with the given share of the area, lying wholly inside the image."""
    height, width = shape[-2:]
    h = (height * (area * torch.exp(-log_aspect)).sqrt()).round().clamp(0, height)
    w = (width * (area * torch.exp(log_aspect)).sqrt()).round().clamp(0, width)
    top, left = (u * (height - h + 1)).floor(), (v * (width - w + 1)).floor()
    y = torch.arange(height, device=u.device)[:, None]
    x = torch.arange(width, device=u.device)[None, :]
    return (y >= top) & (y < top + h) & (x >= left) & (x < left + w)


def _beta_quantiles(alpha: float) -> Tensor:
    """Quantiles of Beta(alpha, alpha) at 1,025 even probabilities: a draw is a look-up, with no rejection loop."""
    import numpy as np
    from scipy.stats import beta

    return torch.from_numpy(beta.ppf(np.linspace(0, 1, 1025), alpha, alpha)).float()
