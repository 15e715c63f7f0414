"""A run killed anywhere and resumed ends in the same bits as one never killed: pytest tests/test_resume.py"""

from pathlib import Path
from typing import Any

import pytest
from training import assert_same_state, train, write_images


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images"), {"train": 29, "val": 7, "test": 4})


@pytest.mark.parametrize(
    ("workers", "max_batch", "options"),
    [
        (0, None, {}),
        (0, 3, {}),  # three accumulated batches a step
        (2, None, {}),
        (0, None, {"val_check_interval": 2}),
        (0, 4, {"val_check_interval": 4}),
        (0, None, {"check_val_every_n_epoch": 2}),
    ],
    ids=["plain", "accumulated", "workers", "mid-epoch validation", "accumulated, validation", "epochs without"],
)
def test_a_resume_from_every_step_ends_in_the_same_bits(
    images: Path, tmp_path: Path, workers: int, max_batch: int | None, options: dict[str, Any]
) -> None:
    whole = train(
        images,
        tmp_path / "whole",
        keep=tmp_path / "kept",
        every_steps=1,
        workers=workers,
        max_batch=max_batch,
        **options,
    )
    kept = sorted((tmp_path / "kept").iterdir())
    steps = whole[1].global_step
    assert steps == 12
    assert {int(path.name[:4]) for path in kept} == set(range(1, steps + 1))
    for path in kept if workers == 0 else kept[:: max(1, len(kept) // 4)]:
        module, trainer, recorder = train(
            images, tmp_path / path.stem, path, every_steps=1, workers=workers, max_batch=max_batch, **options
        )
        assert trainer.global_step == steps
        first = int(path.name[:4]) * trainer.accumulate_grad_batches
        assert recorder.keys == {n: keys for n, keys in whole[2].keys.items() if n >= first}, path.name
        assert recorder.losses == {n: loss for n, loss in whole[2].losses.items() if n >= first}, path.name
        assert_same_state((module, trainer), whole[:2])
