"""No step of the template waits for the device, and a read in a person's own step is found by its line."""

from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import pytest
import torch
from training import train, write_images

import template
from template.callbacks.first_batch import FirstBatch
from template.callbacks.nonfinite import NonFinite
from template.checks.synchronisation import host_reads
from template.data.transforms import Augmentation, DeviceTransform, Preprocessing


class Forbid(L.Callback):
    """Counts reads between a batch's first hook and its last, in the steps that log nothing."""

    def __init__(self) -> None:
        self.reads: Counter[str] = Counter()
        self.steps = 0
        self.stack = ExitStack()

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.global_step > 0 and batch_idx + 1 < trainer.num_training_batches:
            self.steps += 1
            self.counted = self.stack.enter_context(host_reads())

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.stack.close()
        self.reads += getattr(self, "counted", Counter())


def test_a_step_of_the_template_reads_nothing_from_the_device(tmp_path):
    root = write_images(tmp_path / "data", {"train": 32, "val": 3, "test": 3})
    forbid = Forbid()
    options: dict[str, Any] = {
        "log_every_n_steps": 50,
        "max_epochs": 1,
        "limit_val_batches": 0,
        "num_sanity_val_steps": 0,
    }
    train(
        root, tmp_path / "run", callbacks=(forbid, FirstBatch(), NonFinite(check_weights=True)), max_batch=4, **options
    )
    assert forbid.steps >= 4
    assert {read for read in forbid.reads if f"{Path(template.__file__).parent}/" in read} == set()


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("item", lambda tensor: tensor.item()),
        ("bool", lambda tensor: bool(tensor > 0)),
        ("float", lambda tensor: float(tensor)),
        ("cpu", lambda tensor: tensor.cpu()),
        ("tolist", lambda tensor: tensor.tolist()),
        ("item", lambda tensor: f"{tensor:.3f}"),
        ("nonzero", lambda tensor: tensor.reshape(1).nonzero()),
    ],
)
def test_each_kind_of_read_is_counted_at_its_line(name, read):
    with host_reads() as found:
        read(torch.tensor(1.0))
    assert any(key.startswith(f"{name} at {Path(__file__)}:") for key in found), found


def test_afterwards_tensors_are_as_they_were():
    before = {name: getattr(torch.Tensor, name) for name in ("item", "cpu", "__bool__", "__array__")}
    with host_reads():
        pass
    assert {name: getattr(torch.Tensor, name) for name in before} == before


def test_the_device_half_of_the_transforms_reads_nothing():
    augmentation = Augmentation(shift=1, flip=0.5, erase=0.5, brightness=0.2, contrast=0.2, mixup=0.2, cutmix=1.0)
    transform = DeviceTransform(Preprocessing(size=8), augmentation, classes=3, seed=0)
    images, keys = torch.zeros(4, 3, 8, 8, dtype=torch.uint8), torch.arange(8).reshape(4, 2)
    with host_reads() as found:
        transform(images, torch.tensor([0, 1, 2, 0]), keys)
    assert found == Counter()
