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
from template.callbacks.watch import Watch
from template.checks.synchronisation import host_reads
from template.data.transforms import Augmentation, DeviceTransform, Preprocessing


class Forbid(L.Callback):
    """Counts reads from before a batch goes to the device until after every callback's last hook of its step.

    The first step of a run, which reports, and the last of an epoch, which is logged, are left out.
    """

    def __init__(self) -> None:
        self.reads: Counter[str] = Counter()
        self.steps = 0

    def on_train_start(self, trainer, pl_module):
        data, transfer, stack = trainer.datamodule, trainer.datamodule.on_before_batch_transfer, ExitStack()
        batches = 0
        counted: Counter[str] = Counter()

        def on_before_batch_transfer(batch, dataloader_idx):
            nonlocal batches, counted
            batches += 1
            if 1 < batches < trainer.num_training_batches:
                self.steps += 1
                counted = stack.enter_context(host_reads())
            return transfer(batch, dataloader_idx)

        def on_train_batch_end(*arguments):  # the module's comes after the callbacks'
            nonlocal counted
            stack.close()
            self.reads, counted = self.reads + counted, Counter()

        data.on_before_batch_transfer = on_before_batch_transfer
        pl_module.on_train_batch_end = on_train_batch_end


class Reads(L.Callback):
    """Reads one value in one hook of each step."""

    def __init__(self, hook: str) -> None:
        setattr(self, hook, lambda trainer, pl_module, *arguments: next(pl_module.parameters()).sum().item())


def read_in_steps(tmp_path: Path, *callbacks: L.Callback) -> set[str]:
    root = write_images(tmp_path / "data", {"train": 32, "val": 3, "test": 3})
    forbid = Forbid()
    options: dict[str, Any] = {"log_every_n_steps": 50, "max_epochs": 1, "limit_val_batches": 0}
    train(root, tmp_path / "run", callbacks=(forbid, *callbacks), max_batch=4, num_sanity_val_steps=0, **options)
    assert forbid.steps == 6
    return set(forbid.reads)


def test_a_step_of_the_template_reads_nothing_from_the_device(tmp_path):
    reads = read_in_steps(tmp_path, FirstBatch(), NonFinite(check_weights=True), Watch())
    assert {read for read in reads if f"{Path(template.__file__).parent}/" in read} == set()


@pytest.mark.parametrize("hook", ["on_train_batch_start", "on_after_backward", "on_train_batch_end"])
def test_a_read_in_any_hook_of_the_step_would_be_noticed(tmp_path, hook):
    assert any(read.startswith(f"item at {__file__}:") for read in read_in_steps(tmp_path, Reads(hook)))


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
