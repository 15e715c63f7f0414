"""Every format is read right, and no finer than it is needed: CASES 4 to 7."""

import contextlib
import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from pictures import picture, save
from PIL import Image, ImageOps

from template.data.reading import open_image, read_image
from template.data.transforms import Augmentation, Preprocessing, TrainTransform
from template.errors import InputError
from template.randomness import seed_sample


def as_array(path: Path) -> np.ndarray:
    """(H, W, 3) uint8, as the template reads it."""
    return read_image(path).permute(1, 2, 0).numpy()


@pytest.mark.parametrize("suffix", ["png", "bmp", "tif", "webp", "gif", "jpg"])
def test_each_format_is_read_as_it_was_written(tmp_path: Path, suffix: str) -> None:
    pixels = picture(0) // 51 * 51  # few colours: a GIF holds them exactly
    path = tmp_path / f"x.{suffix}"
    Image.fromarray(pixels).save(
        path, **({"lossless": True} if suffix == "webp" else {"quality": 100, "subsampling": 0})
    )
    difference = np.abs(as_array(path).astype(int) - pixels)
    assert difference.mean() <= (1 if suffix == "jpg" else 0)


@pytest.fixture(params=["PIL", "simplejpeg"], autouse=True)
def _decoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test runs with the extra ``speed`` and without it."""
    if request.param == "simplejpeg":
        pytest.importorskip("simplejpeg", reason="simplejpeg (the extra 'speed') is not installed")
    else:
        monkeypatch.setattr("template.data.reading.simplejpeg", None)


def test_both_decoders_of_jpeg_make_the_same_pixels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for mode, size in (("RGB", (161, 147)), ("L", (130, 131))):
        for quality, subsampling in ((95, 0), (75, 2)):
            image = Image.fromarray(picture(1, size[1], size[0])).convert(mode)
            image.save(tmp_path / "x.jpg", quality=quality, subsampling=subsampling)
            for reduction in (1.0, 3.0, 6.0, 12.0):
                read = open_image(tmp_path / "x.jpg").pixels(reduction)
                with monkeypatch.context() as without:
                    without.setattr("template.data.reading.simplejpeg", None)
                    assert torch.equal(open_image(tmp_path / "x.jpg").pixels(reduction), read)


def test_a_jpegs_pixels_are_those_of_the_reference_decoder(tmp_path: Path) -> None:
    for mode, size in (("RGB", (61, 47)), ("L", (30, 31))):
        image = Image.fromarray(picture(1, size[1], size[0])).convert(mode)
        image.save(tmp_path / "x.jpg", quality=85)
        assert np.array_equal(as_array(tmp_path / "x.jpg"), np.asarray(Image.open(tmp_path / "x.jpg").convert("RGB")))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize(("suffix", "side"), [("jpg", 24), ("png", 24), ("jpg", 2400)])
def test_every_orientation_is_read_upright(tmp_path: Path, orientation: int, suffix: str, side: int) -> None:
    path = tmp_path / f"x.{suffix}"
    image = Image.fromarray(picture(2, side * 2 // 3, side))
    exif = Image.Exif()
    exif[0x0112] = orientation
    image.save(path, exif=exif, quality=95)
    opened = open_image(path)
    expected = ImageOps.exif_transpose(Image.open(path)).convert("RGB")
    assert (
        (opened.width, opened.height)
        == expected.size
        == ((16, 24) if side == 24 and orientation > 4 else expected.size)
    )
    reduced = opened.pixels(reduction=side / 24)
    if side == 24:
        assert np.array_equal(reduced.permute(1, 2, 0).numpy(), np.asarray(expected))
    else:  # decoded at an eighth
        assert reduced.shape[1:] == (opened.height // 8, opened.width // 8)
        small = np.asarray(expected.resize((reduced.shape[2], reduced.shape[1]), Image.Resampling.BOX)).astype(int)
        assert np.abs(reduced.permute(1, 2, 0).numpy() - small).mean() < 2


@pytest.mark.parametrize("suffix", ["png", "tif"])
def test_a_16_bit_ramp_keeps_256_levels(tmp_path: Path, suffix: str) -> None:
    ramp = np.linspace(0, 65535, 256).round().astype(np.uint16)[None].repeat(4, 0)
    read = as_array(save(tmp_path / f"ramp.{suffix}", ramp))
    assert read.shape == (4, 256, 3)
    assert read[0, :, 0].tolist() == list(range(256))
    assert (read == read[..., :1]).all()


def test_16_bits_in_a_32_bit_file_are_read_the_same_and_more_is_refused(tmp_path: Path) -> None:
    ramp = np.linspace(0, 65535, 256).round().astype(np.int32)[None]
    assert as_array(save(tmp_path / "ramp.tif", ramp))[0, :, 0].tolist() == list(range(256))
    for name, pixels in (("wide", ramp * 2), ("float", ramp.astype(np.float32))):
        with pytest.raises(InputError, match=rf"{name}\.tif: it holds 32-bit .*convert it to 8 or 16 bits"):
            read_image(save(tmp_path / f"{name}.tif", pixels))


def test_colour_hidden_under_alpha_becomes_white(tmp_path: Path) -> None:
    rgba = np.zeros((2, 3, 4), dtype=np.uint8)
    rgba[..., 0] = 200
    rgba[:, 1, 3], rgba[:, 2, 3] = 128, 255
    for suffix in ("png", "webp", "tif"):
        path = tmp_path / f"x.{suffix}"
        Image.fromarray(rgba).save(path, lossless=True, exact=True)
        read = as_array(path)
        assert read[0, 0].tolist() == [255, 255, 255]
        assert read[0, 2].tolist() == [200, 0, 0]
        assert np.abs(read[0, 1].astype(int) - [227, 127, 127]).max() <= 1


def test_a_transparent_palette_entry_becomes_white(tmp_path: Path) -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([255, 0, 0, 0, 0, 255])
    image.putdata([0, 1])
    for transparency in (0, b"\x00\xff"):
        for suffix in ("png", "gif"):
            if suffix == "gif" and isinstance(transparency, bytes):
                continue
            image.save(tmp_path / f"x.{suffix}", transparency=transparency)
            assert as_array(tmp_path / f"x.{suffix}").tolist() == [[[255, 255, 255], [0, 0, 255]]]


MODES: dict[str, Callable[[], Image.Image]] = {
    "palette": lambda: Image.fromarray(picture(3)).quantize(16),
    "greyscale": lambda: Image.fromarray(picture(3)).convert("L"),
    "greyscale and alpha": lambda: Image.fromarray(picture(3)).convert("LA"),
    "one bit": lambda: Image.fromarray(picture(3)).convert("1"),
}


@pytest.mark.parametrize("make", MODES.values(), ids=MODES)
def test_other_modes_become_three_channels(tmp_path: Path, make: Callable[[], Image.Image]) -> None:
    image = make()
    image.save(tmp_path / "x.png")
    assert np.array_equal(as_array(tmp_path / "x.png"), np.asarray(image.convert("RGB")))


def test_a_cmyk_jpeg_has_the_colours_that_were_printed(tmp_path: Path) -> None:
    pixels = picture(4, 64, 64)
    Image.fromarray(pixels).convert("CMYK").save(tmp_path / "x.jpg", quality=100)
    assert np.abs(as_array(tmp_path / "x.jpg").astype(int) - pixels).mean() < 6


def test_the_first_frame_of_an_animation_is_read(tmp_path: Path) -> None:
    frames = [Image.fromarray(np.full((4, 4, 3), value, dtype=np.uint8)) for value in (10, 200)]
    for suffix in ("gif", "webp"):
        frames[0].save(tmp_path / f"x.{suffix}", save_all=True, append_images=frames[1:], lossless=True)
        assert as_array(tmp_path / f"x.{suffix}").max() < 20


def _jpeg(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=90)
    return file.getvalue()


WHOLE = _jpeg(picture(5, 300, 400))
DAMAGED = {
    "half a file": WHOLE[: len(WHOLE) // 2],
    "an end missing": WHOLE[:-3],
    "nothing": b"",
    "a web page": b"<html><body>404</body></html>",
    "a header alone": WHOLE[:200],
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
@pytest.mark.parametrize("suffix", ["jpg", "png"])
@pytest.mark.parametrize("reduction", [1.0, 8.0])
def test_a_damaged_file_is_named_and_never_half_read(
    tmp_path: Path, content: bytes, suffix: str, reduction: float
) -> None:
    path = tmp_path / f"x.{suffix}"
    path.write_bytes(content)
    with pytest.raises(InputError, match=rf"cannot read .*x\.{suffix}: .*mend or remove the file"):
        open_image(path).pixels(reduction)


def test_a_broken_file_of_any_kind_is_named_by_an_input_error_or_read(tmp_path: Path) -> None:
    draws = np.random.default_rng(0)
    for suffix in ("png", "jpg", "webp", "gif", "bmp", "tif"):
        Image.fromarray(picture(6, 24, 32)).save(tmp_path / f"whole.{suffix}")
        whole = (tmp_path / f"whole.{suffix}").read_bytes()
        for _ in range(40):
            broken = bytearray(whole)
            for at in draws.integers(0, len(whole), 4):
                broken[at] = draws.integers(0, 256)
            (tmp_path / f"x.{suffix}").write_bytes(broken[: draws.integers(len(whole) // 2, len(whole) + 1)])
            with contextlib.suppress(InputError):
                image = read_image(tmp_path / f"x.{suffix}")
                assert image.dtype == torch.uint8
                assert image.shape[0] == 3


@pytest.fixture(scope="module")
def photograph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A detailed photograph of 3840 x 2562 pixels: scikit-learn's china.jpg, nine times side by side."""
    from sklearn.datasets import load_sample_image

    path = tmp_path_factory.mktemp("photograph") / "large.jpg"
    Image.fromarray(np.tile(load_sample_image("china.jpg"), (6, 6, 1))).save(path, quality=90)
    return path


def test_scaled_decoding_stays_within_two_levels_of_exact_decoding_on_average(photograph: Path) -> None:
    preprocessing = Preprocessing(size=224)
    exact = preprocessing.sample(read_image(photograph)).int()
    scaled = preprocessing.sample(open_image(photograph)).int()
    assert open_image(photograph).pixels(2562 / 224).shape[1] == 641  # a quarter
    assert (scaled - exact).abs().float().mean() < 2
    assert (scaled.float().mean() - exact.float().mean()).abs() < 0.25


def test_scaled_decoding_costs_a_classifier_no_accuracy(tmp_path: Path) -> None:
    from sklearn.datasets import load_sample_images
    from sklearn.linear_model import LogisticRegression

    draws = np.random.default_rng(0)
    preprocessing = Preprocessing(size=32)
    exact, scaled, labels = [], [], []
    for label, pixels in enumerate(load_sample_images().images):
        for _ in range(30):
            top, left = draws.integers(0, 427 - 120), draws.integers(0, 640 - 160)
            part = Image.fromarray(pixels[top : top + 120, left : left + 160])
            part.resize((640, 480), Image.Resampling.BICUBIC).save(tmp_path / "x.jpg", quality=90)
            exact.append(preprocessing.sample(read_image(tmp_path / "x.jpg")))
            scaled.append(preprocessing.sample(open_image(tmp_path / "x.jpg")))
            labels.append(label)
    a, b = (torch.stack(images).flatten(1).numpy() / 255 for images in (exact, scaled))
    assert not np.array_equal(a, b)
    held_out = np.arange(60) % 2 == 1
    classifier = LogisticRegression(C=0.01).fit(a[~held_out], np.array(labels)[~held_out])
    right = classifier.predict(a[held_out]) == np.array(labels)[held_out]
    assert 0.6 < right.mean() < 1  # hard enough to lose some
    assert np.array_equal(classifier.predict(b[held_out]), classifier.predict(a[held_out]))


def test_a_random_crop_is_the_same_part_of_the_image_however_it_is_decoded(photograph: Path) -> None:
    transform = TrainTransform(Preprocessing(size=64), Augmentation(crop_scale=0.3))
    whole = read_image(photograph)
    for index in range(6):
        seed_sample(0, 0, index)
        exact = transform(whole).int()
        seed_sample(0, 0, index)
        scaled = transform(open_image(photograph)).int()
        assert (scaled - exact).abs().float().mean() < 4
        others = [(scaled - exact.roll(shift, 2)).abs().float().mean() for shift in (-2, 2)]
        assert (scaled - exact).abs().float().mean() < min(others) / 4


def test_a_photograph_of_ordinary_size_is_decoded_exactly(tmp_path: Path) -> None:
    Image.fromarray(picture(7, 375, 500)).save(tmp_path / "x.jpg")
    assert open_image(tmp_path / "x.jpg").pixels(375 / 224).shape == (3, 375, 500)
