"""The pair of transforms: the deterministic half is shared, the random half is drawn for each sample on its own."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from template.data.transforms import Augmentation, DeviceTransform, Preprocessing, TrainTransform, random_crop_box
from template.errors import InputError
from template.randomness import seed_sample

PLAIN = Preprocessing(size=8, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))


def images(n: int, side: int = 8) -> Tensor:
    """n distinct random pictures; no two pixels of a picture's row are alike but by chance."""
    return torch.randint(0, 256, (n, 3, side, side), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


def keys(n: int, epoch: int = 0) -> Tensor:
    return torch.tensor([[epoch, index] for index in range(n)])


def augmented(
    augmentation: Augmentation, batch: Tensor, targets: Tensor | None = None, epoch: int = 0, k: int = 4
) -> tuple[Tensor, Tensor]:
    targets = torch.arange(len(batch)) % k if targets is None else targets
    return DeviceTransform(PLAIN, augmentation, k, seed=0)(batch, targets, keys(len(batch), epoch))


ALL = {
    "shift": Augmentation(shift=2),
    "flip": Augmentation(flip=0.5),
    "brightness": Augmentation(brightness=0.4),
    "contrast": Augmentation(contrast=0.4),
    "erase": Augmentation(erase=0.9),
}


@pytest.mark.parametrize("augmentation", ALL.values(), ids=ALL)
def test_copies_of_one_image_are_each_augmented_differently(augmentation: Augmentation) -> None:
    out, _ = augmented(augmentation, images(1).expand(64, -1, -1, -1))
    distinct = len({tuple(image.flatten().tolist()) for image in out})
    assert distinct == 2 if augmentation.flip else distinct >= 20  # of 25 shifts nearly all occur


@pytest.mark.parametrize("augmentation", ALL.values(), ids=ALL)
def test_a_samples_augmentation_depends_on_its_key_alone(augmentation: Augmentation) -> None:
    batch = images(16)
    together, _ = augmented(augmentation, batch)
    transform = DeviceTransform(PLAIN, augmentation, 4, seed=0)
    alone = torch.cat(
        [transform(batch[i : i + 1], torch.tensor([0]), keys(16)[i : i + 1])[0] for i in range(len(batch))]
    )
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-6)  # a mean over another layout differs in its last bit
    assert not torch.equal(together, augmented(augmentation, batch, epoch=1)[0])


def test_flips_are_a_mixture_and_probability_one_flips_all() -> None:
    one = images(1)
    out, _ = augmented(Augmentation(flip=0.5), one.expand(64, -1, -1, -1))
    plain = PLAIN.normalise(one)
    flipped = sum(torch.equal(image, plain[0].flip(-1)) for image in out)
    kept = sum(torch.equal(image, plain[0]) for image in out)
    assert flipped + kept == 64
    assert 16 < flipped < 48  # four standard deviations
    assert torch.equal(augmented(Augmentation(flip=1.0), one)[0], plain.flip(-1))


def test_no_augmentation_is_preprocessing_alone() -> None:
    out, targets = augmented(Augmentation(), images(8))
    assert torch.equal(out, PLAIN.normalise(images(8)))
    assert targets.tolist() == [0, 1, 2, 3, 0, 1, 2, 3]


def test_a_shift_moves_pixels_and_black_enters() -> None:
    batch = images(64).clamp(min=1)
    out, _ = augmented(Augmentation(shift=2), batch)
    padded = torch.nn.functional.pad(PLAIN.normalise(batch), [2] * 4)
    moves = [(y, x) for y in range(5) for x in range(5)]
    found = [
        next(m for m in moves if torch.equal(image, big[:, m[0] : m[0] + 8, m[1] : m[1] + 8]))
        for image, big in zip(out, padded, strict=True)
    ]
    assert len(set(found)) > 15


def test_an_erased_rectangle_has_the_mean_colour_and_the_rest_is_untouched() -> None:
    side = 32
    batch = images(64, side).clamp(min=1)
    out, _ = augmented(Augmentation(erase=1.0), batch)
    erased = (out == 0).all(dim=1)
    areas = erased.float().mean(dim=(1, 2))
    assert areas.min() > 0.01
    assert areas.max() < 0.36
    for mask in erased:
        rows, columns = mask.any(1).nonzero().flatten(), mask.any(0).nonzero().flatten()
        assert mask.sum() == len(rows) * len(columns)
        assert rows[-1] - rows[0] + 1 == len(rows)
    kept = ~erased[:, None].expand_as(out)
    assert torch.equal(out[kept], PLAIN.normalise(batch)[kept])


def test_mixup_is_the_named_combination_of_two_images_and_their_targets() -> None:
    batch, labels = images(32), torch.arange(32) % 4
    out, targets = augmented(Augmentation(mixup=0.8), batch, labels)
    assert targets.shape == (32, 4)
    torch.testing.assert_close(targets.sum(1), torch.ones(32))
    plain, hard = PLAIN.normalise(batch), torch.nn.functional.one_hot(labels, 4).float()
    share = targets.gather(1, labels[:, None])[:, 0]  # the next sample is of another class
    expected = share[:, None] * hard + (1 - share[:, None]) * hard.roll(-1, 0)
    torch.testing.assert_close(targets, expected)
    s = share[:, None, None, None]
    torch.testing.assert_close(out, s * plain + (1 - s) * plain.roll(-1, 0), rtol=0, atol=1e-6)
    assert len(share.unique()) > 28


def test_cutmix_targets_are_the_shares_of_the_pixels() -> None:
    batch = torch.arange(4, dtype=torch.uint8).repeat(8)[:, None, None, None].expand(-1, 3, 16, 16)
    labels = batch[:, 0, 0, 0].long()
    preprocessing = replace(PLAIN, size=16)
    transform = DeviceTransform(preprocessing, Augmentation(cutmix=1.0), 4, seed=0)
    out, targets = transform(batch, labels, keys(32))
    counted = torch.stack([(out[:, 0] * 255).round().eq(k).float().mean(dim=(1, 2)) for k in range(4)], dim=1)
    torch.testing.assert_close(targets, counted)
    assert ((targets > 0).sum(1) == 2).sum() > 16


def test_with_mixup_and_cutmix_each_takes_about_half() -> None:
    batch = torch.tensor([0, 255], dtype=torch.uint8).repeat(128)[:, None, None, None].expand(-1, 3, 16, 16)
    transform = DeviceTransform(replace(PLAIN, size=16), Augmentation(mixup=1.0, cutmix=1.0), 2, seed=0)
    out, _ = transform(batch, torch.arange(256) % 2, keys(256))
    blended = ((out > 0.001) & (out < 0.999)).flatten(1).any(1).sum()
    assert 96 < blended < 160


def test_multi_label_targets_are_mixed_and_stay_of_their_shape() -> None:
    labels = torch.tensor([[1.0, 0.0, 1.0, 0.0], [0.0, 0.0, 1.0, 1.0]])
    _, targets = augmented(Augmentation(mixup=1.0), images(2), labels)
    assert targets.shape == (2, 4)
    assert targets[:, 2].tolist() == [1.0, 1.0]
    assert ((targets[:, 0] > 0) & (targets[:, 0] < 1)).all()


def test_mixup_shares_follow_their_beta_distribution() -> None:
    from scipy.stats import beta, kstest

    n = 4000
    labels = torch.arange(n) % 2
    batch = torch.zeros(n, 3, 2, 2, dtype=torch.uint8)
    transform = DeviceTransform(replace(PLAIN, size=2), Augmentation(mixup=0.4), 2, seed=0)
    _, targets = transform(batch, labels, keys(n))
    share = targets.gather(1, labels[:, None])[:, 0].numpy()
    assert kstest(share, beta(0.4, 0.4).cdf).pvalue > 0.001


def test_normalise_of_a_float_batch_equals_that_of_its_uint8() -> None:
    preprocessing = Preprocessing(size=8)
    batch = images(2)
    assert torch.equal(preprocessing.normalise(batch), preprocessing.normalise(batch.float() / 255))
    assert torch.equal(preprocessing.normalise(batch), preprocessing.normalise_unit(batch.float() / 255))
    assert preprocessing.normalise(batch).is_contiguous(memory_format=torch.channels_last)
    mean, std = torch.tensor(preprocessing.mean), torch.tensor(preprocessing.std)
    expected = (batch[1, 2, 3, 4] / 255 - mean[2]) / std[2]
    torch.testing.assert_close(preprocessing.normalise(batch)[1, 2, 3, 4], expected)


@pytest.mark.parametrize(("height", "width"), [(8, 8), (5, 9), (40, 20), (1, 30)])
def test_any_image_becomes_the_square_of_the_network(height: int, width: int) -> None:
    image = torch.zeros(3, height, width, dtype=torch.uint8)
    assert Preprocessing(size=8, resize=10).sample(image).shape == (3, 8, 8)
    assert TrainTransform(PLAIN, Augmentation(crop_scale=0.3))(image).shape == (3, 8, 8)


def test_the_centre_is_what_is_kept() -> None:
    image = torch.zeros(3, 8, 16, dtype=torch.uint8)
    image[..., 4:12] = 200
    assert (PLAIN.sample(image) == 200).all()


def test_preprocessing_survives_its_plain_form() -> None:
    preprocessing = Preprocessing(size=48, resize=64, mean=(0.3, 0.3, 0.3))
    assert Preprocessing(**preprocessing.to_dict()) == preprocessing
    assert preprocessing.to_dict()["mean"] == [0.3, 0.3, 0.3]


def test_a_random_crop_lies_in_the_image_covers_its_share_and_repeats_with_its_key() -> None:
    boxes = []
    for index in range(300):
        seed_sample(0, 0, index)
        boxes.append(random_crop_box(60, 90, 0.25))
    for top, left, height, width in boxes:
        assert 0 <= top <= top + height <= 60
        assert 0 <= left <= left + width <= 90
        assert 0.65 < width / height < 1.55 or height == 60 or width == 90
    areas = [height * width / 5400 for _, _, height, width in boxes]
    assert min(areas) > 0.22
    assert max(areas) > 0.8
    seed_sample(0, 0, 17)
    assert random_crop_box(60, 90, 0.25) == boxes[17]


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: Augmentation(flip=1.5), "augmentation.flip is 1.5; expected 0 to 1"),
        (lambda: Augmentation(mixup=-1), "augmentation.mixup is -1"),
        (lambda: Augmentation(crop_scale=0), "augmentation.crop_scale is 0"),
        (lambda: Preprocessing(size=0), "preprocessing.size is 0"),
        (lambda: Preprocessing(size=8, resize=4), "1 <= size <= resize"),
        (lambda: Preprocessing(std=(1, 0, 1)), "every number must be above 0"),
        (lambda: Preprocessing(mean=(1, 1)), "expected 3 numbers"),  # type: ignore[arg-type]
    ],
)
def test_values_out_of_range_are_refused_by_name(make: Callable[[], object], what: str) -> None:
    with pytest.raises(InputError, match=what):
        make()
