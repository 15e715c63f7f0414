"""The gradient of a step is the mean over its samples, however they are cut: pytest tests/test_loss_window.py"""

import math
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from training import NoBatchStatistics, train, write_images

from template.data.sampler import TrainSampler, trainer_position
from template.model.module import Classifier

pytestmark = pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no")


class Product(nn.Module):
    """A network of one weight, w."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.w * x


class Itself(nn.Module):
    """A criterion that takes the network's output for the loss."""

    def forward(self, logits: Tensor, targets: Tensor) -> dict[str, Tensor]:
        return {"loss": logits}


class Values(torch.utils.data.Dataset[dict[str, Tensor]]):
    def __init__(self, values: list[float]) -> None:
        self.values = values

    def __getitems__(self, keys: list[tuple[int, int]]) -> dict[str, Tensor]:
        x = torch.tensor([self.values[index] for _, index in keys])
        return {"image": x, "target": torch.zeros(len(x), dtype=torch.long), "key": torch.tensor(keys)}


def trained_weight(values: list[float], batch: int, accumulate: int, **options: Any) -> tuple[float, int]:
    """w after one epoch of SGD with learning rate 1 on loss = w * x, and the number of steps."""
    module = Classifier(("a", "b"), optimizer="SGD", learning_rate=1.0, weight_decay=0.0)
    module.network, module.criterion = Product(), Itself()
    module._train_parts = lambda logits, target, parts: parts  # type: ignore[method-assign]
    trainer = L.Trainer(
        max_epochs=1,
        accelerator="cpu",
        accumulate_grad_batches=accumulate,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=0,
        **options,
    )
    sampler = TrainSampler(
        len(values), batch * accumulate, 0, accumulation=accumulate, position=trainer_position(trainer)
    )
    trainer.fit(module, DataLoader(Values(values), batch_sampler=sampler, collate_fn=lambda batch: batch))
    return float(module.network.w.detach()), trainer.global_step


@pytest.mark.parametrize(
    ("values", "batch", "accumulate", "w", "steps"),
    [
        ([1.0] * 5, 1, 2, -3.0, 3),
        ([0.0, 0.0, 0.0, 0.0, 10.0], 2, 3, -2.0, 1),
        ([1.0] * 3, 1, 8, -1.0, 1),
        ([1.0] * 7, 2, 2, -2.0, 2),
        ([1.0] * 9, 3, 1, -3.0, 3),
    ],
)
def test_a_short_last_window_weighs_its_samples_like_any_other(values, batch, accumulate, w, steps):
    assert trained_weight(values, batch, accumulate) == (pytest.approx(w, abs=1e-6), steps)


def test_a_window_cut_short_by_limit_train_batches_is_divided_by_what_it_held():
    assert trained_weight([1.0] * 12, 1, 4, limit_train_batches=6) == (-2.0, 2)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images"), {"train": 29, "val": 7, "test": 4})


def test_accumulated_batches_train_like_the_large_batch(images, tmp_path):
    def trained(max_batch: int | None) -> Classifier:
        options: dict[str, Any] = {"callbacks": (NoBatchStatistics(),), "dropout": 0.0}
        return train(images, tmp_path / str(max_batch), max_batch=max_batch, optimizer="SGD", **options)[0]

    large = trained(None)
    for max_batch in (1, 3, 4, 5):
        small = trained(max_batch)
        difference = max(
            float((one - other).detach().abs().max())
            for one, other in zip(small.parameters(), large.parameters(), strict=True)
        )
        assert difference < 2e-6, f"accumulated batches of {max_batch}"


def test_class_weights_multiply_and_leave_the_divisor_alone():
    module = Classifier(("a", "b"), class_weights=[1.0, 3.0])
    logits, targets = torch.zeros(4, 2), torch.tensor([0, 0, 1, 1])
    assert module.criterion(logits, targets)["loss"].tolist() == pytest.approx(
        [math.log(2)] * 2 + [3 * math.log(2)] * 2
    )
