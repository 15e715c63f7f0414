"""Splits become loaders: what is read, in which batches, by how many workers, and what the device does to a batch."""

import atexit
import logging
import math
import multiprocessing
import signal
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import lightning.pytorch as L
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from template.data.cache import Cache
from template.data.dataset import Images
from template.data.index import Index
from template.data.sampler import EvalSampler, Key, TrainSampler, trainer_position
from template.data.sources import read_source
from template.data.transforms import Augmentation, DeviceTransform, Preprocessing, TrainTransform
from template.data.verify import leave_out_damaged
from template.data.workers import check_lone_samples, choose_workers, cores, warn_of_small_shared_memory
from template.errors import InputError
from template.randomness import balanced_order, epoch_order, seed_sample

log = logging.getLogger(__name__)
Batch = dict[str, Tensor]
_SMALL = 1 << 16  # bytes: as much as a pipe takes at once


class DataModule(L.LightningDataModule):
    """Images in three splits.

    Args:
        root: Folder with the images, or where a named source puts its files.
        source: ``folder`` (class folders, in split folders or not), a manifest (a .csv, .tsv or .jsonl file with the
            columns path and label, or one column a class, and optionally split and group), ``digits``
            (scikit-learn's, written to ``root``), or a torchvision data set: MNIST, FashionMNIST, KMNIST, QMNIST,
            CIFAR10, CIFAR100.
        preprocessing: What is done to every image, always; it travels in the checkpoint.
        augmentation: What training adds at random.
        global_batch_size: Samples in one optimizer step, over all devices and accumulated batches.
        max_batch_per_device: Most samples that fit a device at once; larger pieces are accumulated. None: no limit.
        class_balance: 0 takes each sample once an epoch, 1 draws every class equally often, with replacement; 0.5 is in
            between.
        num_workers: Processes that read samples; 0 reads them in the training process, ``auto`` measures and chooses.
        cache: Folder for decoded images, which later epochs and runs read from there; None decodes each time.
        store_size: Shorter side, in pixels, to which larger images are brought right after decoding, with or without
            a cache; None is as they are.
        val_fraction: Share of the training samples cut as validation where there is no such split.
        test_fraction: Share of the training samples cut as test where there is no such split; 0 for none.
        max_damaged: Most files that may be left out because they cannot be decoded; above 0 every file is read once.
        split_seed: Seed of that cut, apart from ``seed``, so that every seed is tested on the same images.
        seed: The run's seed: the order of the epochs and every random draw follow from it.

    Raises:
        InputError: A value is out of range.
    """

    def __init__(
        self,
        root: Path,
        source: str = "folder",
        preprocessing: Preprocessing = Preprocessing(),
        augmentation: Augmentation = Augmentation(),
        global_batch_size: int = 128,
        max_batch_per_device: int | None = None,
        class_balance: float = 0.0,
        num_workers: int | Literal["auto"] = 0,
        cache: Path | None = None,
        store_size: int | None = None,
        val_fraction: float = 0.1,
        test_fraction: float = 0.1,
        split_seed: int = 0,
        max_damaged: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        for name, value in (("global_batch_size", global_batch_size), ("max_batch_per_device", max_batch_per_device)):
            if value is not None and value < 1:
                raise InputError(f"data.{name} is {value}; expected 1 or more")
        if max_damaged < 0:
            raise InputError(f"data.max_damaged is {max_damaged}; expected 0 or more")
        if isinstance(num_workers, int) and num_workers < 0:
            raise InputError(f"data.num_workers is {num_workers}; expected 0 or more, or auto")
        for name, fraction in (("val_fraction", val_fraction), ("test_fraction", test_fraction)):
            if not 0 <= fraction < 1:
                raise InputError(f"data.{name} is {fraction:g}; expected 0 to 1, 1 excluded")
        if not 0 <= class_balance <= 1:
            raise InputError(f"data.class_balance is {class_balance:g}; expected 0 to 1")
        self.root = Path(root)
        self.source = source
        self.preprocessing = replace(preprocessing, store_size=store_size) if store_size else preprocessing
        self.augmentation = augmentation
        self.global_batch_size = global_batch_size
        self.max_batch_per_device = max_batch_per_device
        self.class_balance = class_balance
        self.num_workers = num_workers if isinstance(num_workers, int) else 0
        self.measures_workers = num_workers == "auto"
        self.cache = cache
        self.val_fraction = val_fraction
        self.test_fraction = test_fraction
        self.split_seed = split_seed
        self.max_damaged = max_damaged
        self.seed = seed

    @cached_property
    def splits(self) -> dict[str, Index]:
        """The index of each split, built when first asked for; what was skipped is logged once.

        Raises:
            InputError: The data cannot be indexed.
        """
        splits = read_source(self.source, self.root, (self.val_fraction, self.test_fraction), self.split_seed)
        if "val" not in splits:
            raise InputError(f"no validation images: add {self.root}/val, or set data.val_fraction above 0")
        if self.max_damaged:
            splits = leave_out_damaged(splits, self.max_damaged)
        for index in splits.values():
            for note in index.notes:
                log.warning(note)
        return splits

    @property
    def class_names(self) -> tuple[str, ...]:
        """The training split's class names, in the order of their numbers."""
        return self.splits["train"].class_names

    def accumulation(self, ranks: int = 1) -> int:
        """Batches to accumulate so that none exceeds ``max_batch_per_device``."""
        if self.max_batch_per_device is None:
            return 1
        return -(-self.global_batch_size // (ranks * self.max_batch_per_device))

    def settings(self) -> dict[str, Any]:
        """What ``evaluate`` needs to find the same splits again, in plain types, for a checkpoint."""
        return {
            "root": str(self.root),
            "source": self.source,
            "val_fraction": self.val_fraction,
            "test_fraction": self.test_fraction,
            "split_seed": self.split_seed,
            "max_damaged": self.max_damaged,
        }

    def fingerprints(self) -> dict[str, str]:
        """Of each split: it changes when a path, a label or a class name does."""
        return {split: index.fingerprint for split, index in self.splits.items()}

    def state_dict(self) -> dict[str, Any]:
        return {"fingerprints": self.fingerprints()}

    @cached_property
    def device_transform(self) -> DeviceTransform:
        return DeviceTransform(self.preprocessing, self.augmentation, len(self.class_names), self.seed)

    def setup(self, stage: str) -> None:
        """Choose the number of workers where it is ``auto``, and say why."""
        if stage != "fit" or not self.measures_workers:
            return
        assert self.trainer is not None
        trainer = self.trainer
        index, on_cpu = self.splits["train"], trainer.strategy.root_device.type == "cpu"
        ranks_here = getattr(trainer, "num_devices", 1)
        batch_size = -(-self.global_batch_size // (trainer.world_size * trainer.accumulate_grad_batches))
        read = KeyedBatches(self._train_images(index, cache=None), self.seed).__getitems__
        self.num_workers, why = choose_workers(read, len(index), batch_size, cores(ranks_here), on_cpu)
        self.measures_workers = False
        log.info(f"data.num_workers auto: {self.num_workers}: {why}")

    def train_dataloader(self) -> DataLoader[Any]:
        assert self.trainer is not None
        trainer = self.trainer
        index = self.splits["train"]
        batches: int | float = trainer.overfit_batches  # type: ignore[attr-defined]
        if batches:  # the same few samples each epoch; Lightning limits the number of batches
            index = self._overfit(index, batches)
        sampler = TrainSampler(
            len(index),
            self.global_batch_size,
            self.seed,
            ranks=trainer.world_size,
            rank=trainer.global_rank,
            accumulation=trainer.accumulate_grad_batches,
            position=trainer_position(trainer),
            order=self._balanced(index.targets) if self.class_balance else None,
        )
        if trainer.is_global_zero:
            if trainer.lightning_module is not None:  # the checks before a run have none yet
                check_lone_samples(sampler, trainer.lightning_module)
            if sampler.dropped:
                log.warning(
                    f"the last {sampler.dropped} of {len(index)} samples of each epoch are left out: too few for "
                    f"{trainer.world_size} processes"
                )
            if self.global_batch_size > len(index):
                log.warning(
                    f"data.global_batch_size is {self.global_batch_size}, the training split has {len(index)} "
                    "samples: each epoch is one step on all of them"
                )
        # The sampler is resumable by its position; Lightning looks for a loader with a state_dict instead.
        warnings.filterwarnings("ignore", message="You're resuming from a checkpoint that ended before the epoch")
        batch_size = -(-self.global_batch_size // (trainer.world_size * trainer.accumulate_grad_batches))
        images = self._train_images(index, None if batches else self._cache("train"))
        loader = self._loader(images, sampler, batch_size)
        if trainer.is_global_zero:
            where = f"{loader.num_workers} workers, kept from epoch to epoch" if loader.num_workers else "no workers"
            pinned = "pinned for the copy to the accelerator" if loader.pin_memory else "not pinned: no accelerator"
            log.info(f"reading with {where}; batches {pinned}")
        return loader

    def val_dataloader(self) -> DataLoader[Any]:
        return self._eval_loader("val")

    def test_dataloader(self) -> DataLoader[Any]:
        return self._eval_loader("test")

    def on_before_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        """Note when the batch had been fetched: StepLog takes the time before that as spent waiting for data."""
        self.fetched = time.perf_counter()
        return batch

    def on_after_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        """Float, augment and normalise on the device: augmentation only where the Trainer is training."""
        assert self.trainer is not None
        if self.trainer.training:
            image, target = self.device_transform(batch["image"], batch["target"], batch["key"])
            return {**batch, "image": image, "target": target}
        return {**batch, "image": self.preprocessing.normalise(batch["image"])}

    def _balanced(self, targets: np.ndarray) -> Callable[[int], np.ndarray]:
        if targets.ndim > 1:
            raise InputError("data.class_balance is for one class an image; with several set model.class_weights")
        return partial(balanced_order, targets, self.class_balance, self.seed)

    def _overfit(self, index: Index, batches: int | float) -> Index:
        assert self.trainer is not None
        each = self.global_batch_size / self.trainer.accumulate_grad_batches
        n = batches * each if isinstance(batches, int) else batches * len(index)
        return index.take(epoch_order(len(index), self.seed, 0)[: math.ceil(n)])

    def _eval_loader(self, split: str) -> DataLoader[Any]:
        assert self.trainer is not None
        if split not in self.splits:
            raise InputError(f"the data in {self.root} has no {split} split; it has {', '.join(self.splits)}")
        index = self.splits[split]
        ranks = self.trainer.world_size
        batch_size = self.max_batch_per_device or -(-self.global_batch_size // ranks)
        sampler = EvalSampler(len(index), batch_size, ranks, self.trainer.global_rank, split)
        images = Images(index, self.preprocessing.sample, self._cache(split), self._unchanged())
        return self._loader(images, sampler, batch_size)

    def _train_images(self, index: Index, cache: Cache | None) -> Images:
        random = self.augmentation.crop_scale is not None or self.augmentation.trivial_augment
        transform = TrainTransform(self.preprocessing, self.augmentation)
        return Images(index, transform, cache, None if random else self._unchanged())

    def _unchanged(self) -> int | None:
        """Side of the images that need no resizing, which is the network's unless more is cut out of a larger one."""
        size = self.preprocessing.size
        return size if self.preprocessing.resize in (None, size) else None

    def _cache(self, split: str) -> Cache | None:
        index = self.splits[split]
        if self.cache is None or index.pixels is not None:
            return None
        folder = Path(self.cache) / f"{self.root.resolve().name}-{split}"
        return Cache.of(index, folder, self.preprocessing)

    def _loader(self, dataset: Images, sampler: Sampler[list[Key]], batch_size: int) -> DataLoader[Any]:
        assert self.trainer is not None
        if self.trainer.is_global_zero:
            warn_of_small_shared_memory(self.num_workers, batch_size * 3 * self.preprocessing.size**2)
        return DataLoader(
            KeyedBatches(dataset, self.seed),
            batch_sampler=sampler,
            num_workers=self.num_workers,
            collate_fn=_handed_over,
            pin_memory=self.trainer.strategy.root_device.type == "cuda",
            persistent_workers=self.num_workers > 0,
            worker_init_fn=_ignore_signals,
        )


class KeyedBatches(Dataset[Batch]):
    """Batches of a data set whose every sample is drawn from (seed, epoch, index).

    Args:
        dataset: Maps a key (epoch, index) to an image (3, S, S) uint8 and a target.
        seed: The run's seed.
    """

    def __init__(self, dataset: Dataset[tuple[Tensor, Tensor]], seed: int) -> None:
        self.dataset = dataset
        self.seed = seed

    def __getitems__(self, keys: Sequence[Key]) -> Batch:
        """{"image": (B, 3, S, S) uint8, "target": (B,) or (B, K), "key": (B, 2) int64}.

        Raises:
            InputError: The images differ in shape.
        """
        table = np.array(keys, dtype=np.int64)
        if isinstance(self.dataset, Images) and type(self.dataset).__getitem__ is Images.__getitem__:
            rows = table[:, 1]
            if (together := self.dataset.batch(rows)) is not None:
                return {"image": together, "target": self.dataset.targets(rows), "key": torch.from_numpy(table)}
        images, targets = [], []
        for epoch, index in keys:
            seed_sample(self.seed, epoch, index)
            image, target = self.dataset[epoch, index]
            images.append(image)
            targets.append(target)
        shapes = {tuple(image.shape) for image in images}
        if len(shapes) > 1:
            raise InputError(f"a batch needs images of one shape, and the data set returned {sorted(shapes)}")
        return {"image": _stack(images), "target": torch.stack(targets), "key": torch.from_numpy(table)}


def _stack(images: list[Tensor]) -> Tensor:
    """(3, S, S) each to (B, 3, S, S), in the memory order that they have: to change it takes 0.2 ms an image."""
    if images[0].ndim == 3 and all(image.stride(0) == 1 for image in images):
        return torch.stack([image.permute(1, 2, 0) for image in images]).permute(0, 3, 1, 2)
    return torch.stack(images)


class _Inline:
    """A tensor on its way from a worker: it goes through the pipe and arrives as a tensor.

    Torch would put each into shared memory of its own, which takes 0.5 ms however small it is.
    """

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def __reduce__(self) -> tuple[Any, ...]:
        return torch.from_numpy, (self.tensor.numpy(),)


def _handed_over(batch: Any) -> Any:
    """A batch as it leaves this process, which is as it is where that is the training process."""
    if torch.utils.data.get_worker_info() is None:
        return batch
    return {name: _Inline(tensor) if tensor.nbytes < _SMALL else tensor for name, tensor in batch.items()}


def _ignore_signals(worker: int) -> None:
    """A signal to the process group is for the training process: it saves, and the workers end with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


@atexit.register
def _end_workers() -> None:
    """Multiprocessing ends daemons with SIGTERM when Python exits and waits for them: ours would ignore it."""
    for child in multiprocessing.active_children():
        if child.daemon:
            child.kill()
