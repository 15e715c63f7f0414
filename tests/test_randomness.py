"""Every draw is a function of (seed, epoch, index) alone."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from template.data.datamodule import KeyedBatches
from template.data.sampler import TrainSampler
from template.randomness import epoch_order, keyed_uniforms, mix, preserved, seed_sample


def keys(epoch: int, indices: range) -> Tensor:
    return torch.tensor([[epoch, index] for index in indices])


def test_a_samples_uniforms_do_not_depend_on_the_batch_around_it() -> None:
    batch = keyed_uniforms(7, keys(3, range(64)), 5)
    alone = torch.cat([keyed_uniforms(7, keys(3, range(i, i + 1)), 5) for i in range(64)])
    assert torch.equal(batch, alone)
    assert torch.equal(batch.flip(0), keyed_uniforms(7, keys(3, range(64)).flip(0), 5))


def test_uniforms_change_with_seed_epoch_index_draw_and_stream() -> None:
    drawn = torch.stack(
        [
            keyed_uniforms(0, keys(0, range(8)), 4),
            keyed_uniforms(1, keys(0, range(8)), 4),
            keyed_uniforms(0, keys(1, range(8)), 4),
            keyed_uniforms(0, keys(0, range(8, 16)), 4),
            keyed_uniforms(0, keys(0, range(8)), 4, stream=1),
        ]
    )
    assert len(drawn.unique()) == drawn.numel()


def test_uniforms_are_even_in_the_unit_interval_and_uncorrelated_between_draws() -> None:
    drawn = keyed_uniforms(0, keys(0, range(20_000)), 3).double()
    assert drawn.min() >= 0
    assert drawn.max() < 1
    counts = torch.stack([torch.histc(column, 10, 0, 1) for column in drawn.T])
    assert (counts - 2000).abs().max() < 5 * 2000**0.5  # five standard deviations
    correlation = torch.corrcoef(drawn.T) - torch.eye(3)
    assert correlation.abs().max() < 5 / 20_000**0.5


def test_mix_is_splitmix64_and_order_matters() -> None:
    assert mix(0) == 0xE220A8397B1DCDAF  # the first output of the published generator from state 0
    assert mix(1, 2) != mix(2, 1)
    assert mix(0, 0) != mix(0)


def test_an_epochs_order_is_a_permutation_of_seed_and_epoch() -> None:
    assert sorted(epoch_order(100, 0, 0)) == list(range(100))
    assert list(epoch_order(100, 0, 0)) == list(epoch_order(100, 0, 0))
    assert list(epoch_order(100, 0, 0)) != list(epoch_order(100, 0, 1))
    assert list(epoch_order(100, 0, 0)) != list(epoch_order(100, 1, 0))


def test_preserved_leaves_all_three_generators_as_they_were() -> None:
    def draw() -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), float(torch.rand(()))

    seed_sample(0, 0, 0)
    expected = draw()
    seed_sample(0, 0, 0)
    with preserved():
        seed_sample(1, 2, 3)
        draw()
    assert draw() == expected


class RandomNumbers(Dataset[tuple[Tensor, Tensor]]):
    """Nine numbers a sample: three from each of Python, NumPy and torch."""

    def __getitem__(self, key: tuple[int, int]) -> tuple[Tensor, Tensor]:
        numbers = [random.random() for _ in range(3)]
        numbers += np.random.rand(3).tolist()
        numbers += torch.rand(3, dtype=torch.float64).tolist()
        return torch.tensor(numbers, dtype=torch.float64), torch.tensor(key[1])


def two_epochs(workers: int, persistent: bool = False, seed: int = 0) -> Tensor:
    """(2 epochs, 12 samples, 9 numbers), samples sorted by index."""
    epoch = 0
    loader = DataLoader(
        KeyedBatches(RandomNumbers(), seed),
        batch_sampler=TrainSampler(12, 4, seed, position=lambda length: (epoch, 0)),
        num_workers=workers,
        persistent_workers=persistent,
        collate_fn=lambda batch: batch,
    )
    epochs = []
    for epoch in range(2):
        batches = list(loader)
        keys = torch.cat([batch["key"] for batch in batches])
        assert (keys[:, 0] == epoch).all()
        epochs.append(torch.cat([batch["image"] for batch in batches])[keys[:, 1].argsort()])
    return torch.stack(epochs)


def test_random_numbers_of_a_data_set_are_all_distinct_and_repeat_with_the_seed_whatever_the_workers() -> None:
    reference = two_epochs(workers=0)
    assert len(reference.unique()) == reference.numel()
    for workers, persistent in ((0, False), (1, False), (2, False), (2, True)):
        assert torch.equal(two_epochs(workers, persistent), reference)
    assert not torch.isin(two_epochs(0, seed=1), reference).any()


def test_images_of_unequal_shapes_are_refused_with_the_shapes(tmp_path: Path) -> None:
    from template.errors import InputError

    class Uneven(Dataset[tuple[Tensor, Tensor]]):
        def __getitem__(self, key: tuple[int, int]) -> tuple[Tensor, Tensor]:
            return torch.zeros(3, 4 + key[1], 4, dtype=torch.uint8), torch.tensor(0)

    with pytest.raises(InputError, match=r"\(3, 4, 4\), \(3, 5, 4\)"):
        KeyedBatches(Uneven(), 0).__getitems__([(0, 0), (0, 1)])
