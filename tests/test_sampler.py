"""The order of training is cut into global batches and pieces exactly; an evaluation sees every sample once."""

import pytest

from template.data.sampler import EvalSampler, TrainSampler
from template.errors import InputError
from template.randomness import epoch_order

SHAPES = [(1, 1), (2, 1), (1, 2), (2, 2), (1, 3), (3, 2)]


def steps_of(n: int, batch: int, ranks: int, accumulation: int) -> list[list[int]]:
    """The samples of each optimizer step of epoch 0, over all ranks and accumulated batches."""
    epochs = [list(TrainSampler(n, batch, 0, ranks, rank, accumulation)) for rank in range(ranks)]
    starts = range(0, len(epochs[0]), accumulation)
    return [[i for epoch in epochs for micro in epoch[at : at + accumulation] for _, i in micro] for at in starts]


def sizes_of(n: int, batch: int, ranks: int, accumulation: int) -> list[int]:
    return [len(micro) for rank in range(ranks) for micro in TrainSampler(n, batch, 0, ranks, rank, accumulation)]


@pytest.mark.parametrize(("ranks", "accumulation"), SHAPES)
def test_ranks_and_accumulation_partition_each_global_batch(ranks: int, accumulation: int) -> None:
    for n in range(12, 31):
        order = epoch_order(n, 0, 0).tolist()
        kept = n - TrainSampler(n, 12, 0, ranks, 0, accumulation).dropped
        steps = steps_of(n, 12, ranks, accumulation)
        assert [sorted(step) for step in steps] == [sorted(order[i : min(i + 12, kept)]) for i in range(0, kept, 12)]
        assert n - kept < ranks
        assert TrainSampler(n, 12, 0, ranks, 0, accumulation).smallest_batch == min(
            sizes_of(n, 12, ranks, accumulation)
        )


@pytest.mark.parametrize(("ranks", "accumulation"), SHAPES)
def test_window_size_is_the_real_count_also_of_the_tail_and_of_a_limit(ranks: int, accumulation: int) -> None:
    for n in range(12, 31):
        samplers = [TrainSampler(n, 12, 0, ranks, rank, accumulation) for rank in range(ranks)]
        epochs = [list(sampler) for sampler in samplers]
        length = len(epochs[0])
        assert all(len(epoch) == length == len(samplers[0]) for epoch in epochs)
        assert all(batch for epoch in epochs for batch in epoch)
        for limit in range(1, length + 1):
            for batch in range(limit):
                window = batch // accumulation * accumulation
                batches = range(window, min(window + accumulation, limit))
                counted = sum(len(epoch[i]) for epoch in epochs for i in batches)
                assert samplers[0].window_size(batch, limit) == counted


def test_each_epoch_has_its_own_order_and_every_sample_once() -> None:
    first = list(TrainSampler(10, 4, 0, position=lambda length: (0, 0)))
    second = list(TrainSampler(10, 4, 0, position=lambda length: (1, 0)))
    for epoch, batches in enumerate((first, second)):
        keys = [key for batch in batches for key in batch]
        assert {key[0] for key in keys} == {epoch}
        assert sorted(key[1] for key in keys) == list(range(10))
    assert [[key[1] for key in batch] for batch in first] != [[key[1] for key in batch] for batch in second]


@pytest.mark.parametrize("start", range(4))
def test_a_position_gives_exactly_the_batches_that_are_left_also_to_a_second_iterator(start: int) -> None:
    whole = list(TrainSampler(10, 4, 0, position=lambda length: (1, 0)))
    resumed = TrainSampler(10, 4, 0, position=lambda length: (1, start))
    iter(resumed)
    assert list(resumed) == whole[start:]
    assert len(resumed) == 3


def test_a_batch_or_split_too_small_for_its_pieces_is_refused() -> None:
    with pytest.raises(InputError, match=r"global_batch_size is 3; 2 process\(es\) x 2"):
        TrainSampler(100, 3, 0, ranks=2, accumulation=2)
    with pytest.raises(InputError, match="training split has 1 samples"):
        TrainSampler(1, 100, 0, ranks=2, accumulation=2)


@pytest.mark.parametrize(("n", "ranks"), [(5, 2), (7, 3), (8, 1), (4, 4)])
def test_an_evaluation_sees_every_sample_once_in_order(n: int, ranks: int) -> None:
    samplers = [EvalSampler(n, 2, ranks, rank) for rank in range(ranks)]
    keys = [key for sampler in samplers for batch in sampler for key in batch]
    assert keys == [(0, index) for index in range(n)]
    assert all(len(list(sampler)) == len(sampler) >= 1 for sampler in samplers)


def test_an_evaluation_with_a_process_left_empty_is_refused() -> None:
    with pytest.raises(InputError, match="the test split has 1 samples for 2 processes"):
        EvalSampler(1, 2, ranks=2, split="test")
