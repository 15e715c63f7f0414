"""Splits become loaders: workers, pinning, shared memory, lone last batches, and runs with and without the cache."""

import logging
import pickle
from collections import namedtuple
from pathlib import Path

import lightning.pytorch as L
import numpy as np
import pytest
import torch
from pictures import class_folders
from torch import nn
from torch.utils.data import DataLoader

from template.data import workers as workers_module
from template.data.datamodule import DataModule, KeyedBatches, _handed_over
from template.data.dataset import Images
from template.data.index import Index
from template.data.packed import PackedStrings
from template.data.sampler import EvalSampler, TrainSampler
from template.data.transforms import Augmentation, Preprocessing, TrainTransform
from template.data.workers import check_lone_samples, choose_workers, warn_of_small_shared_memory
from template.errors import InputError
from template.model.module import Classifier

SMALL = Preprocessing(size=8)


def fitted(root: Path, epochs: int = 2, **settings: object) -> tuple[L.Trainer, Classifier]:
    """A short run, and the network after it."""
    datamodule = DataModule(root, preprocessing=SMALL, global_batch_size=8, **settings)  # type: ignore[arg-type]
    torch.manual_seed(0)
    module = Classifier(datamodule.class_names, datamodule.preprocessing, width=4)
    trainer = L.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
    trainer.fit(module, datamodule)
    return trainer, module


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return class_folders(tmp_path_factory.mktemp("data") / "photos", ["a", "b"], each=20, suffix=".jpg")


def test_a_run_is_the_same_with_the_cache_with_workers_and_from_a_filled_cache(photos: Path, tmp_path: Path) -> None:
    augmentation = Augmentation(crop_scale=0.5, flip=0.5)
    plain, module = fitted(photos, augmentation=augmentation)
    for settings in ({"cache": tmp_path}, {"cache": tmp_path}, {"cache": tmp_path, "num_workers": 2}):
        trainer, again = fitted(photos, augmentation=augmentation, **settings)
        assert trainer.callback_metrics.keys() == plain.callback_metrics.keys()
        assert all(torch.equal(value, plain.callback_metrics[name]) for name, value in trainer.callback_metrics.items())
        pairs = zip(module.parameters(), again.parameters(), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)


def test_batches_keep_their_contract(photos: Path) -> None:
    batch = KeyedBatches(Images(DataModule(photos).splits["train"], SMALL.sample), 0).__getitems__([(3, 1), (3, 0)])
    assert batch["image"].shape == (2, 3, 8, 8)
    assert batch["image"].dtype == torch.uint8
    assert batch["target"].dtype == torch.int64
    assert batch["key"].tolist() == [[3, 1], [3, 0]]


def lone(n: int, batch: int, network: nn.Module) -> None:
    check_lone_samples(TrainSampler(n, batch, 0), network)


def test_a_lone_last_sample_before_a_batchnorm1d_is_refused_with_a_batch_size_that_works() -> None:
    head = nn.Sequential(nn.Flatten(), nn.Linear(4, 4), nn.BatchNorm1d(4))
    with pytest.raises(InputError, match=r"last batch of each epoch is one sample \(9 samples.*BatchNorm1d.*to 5, or"):
        lone(9, 4, head)
    lone(10, 4, head)
    lone(9, 5, head)
    lone(9, 4, nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)))


def test_a_lone_last_sample_before_other_batch_norms_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        lone(9, 4, nn.BatchNorm2d(3))
    assert "statistics are those of one image" in caplog.text


def test_a_small_shared_memory_is_told_with_figures_and_two_remedies(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(workers_module, "SHARED_MEMORY", tmp_path)
    monkeypatch.setattr("template.data.workers.shutil.disk_usage", lambda path: usage(0, 0, 64_000_000))
    with caplog.at_level(logging.WARNING):
        warn_of_small_shared_memory(1, 20_000_000)
        warn_of_small_shared_memory(0, 20_000_000)
        assert not caplog.text
        warn_of_small_shared_memory(4, 20_000_000)
    assert "64 MB free" in caplog.text
    assert "need 160 MB" in caplog.text
    assert "--shm-size=1g" in caplog.text
    assert "data.num_workers to 1" in caplog.text


def measured(monkeypatch: pytest.MonkeyPatch, ms: float, cores: int, on_cpu: bool) -> tuple[int, str]:
    """The choice when one sample takes ``ms`` by a clock of our own."""
    now = 0.0

    def read(keys: object) -> None:
        nonlocal now
        now += len(keys) * ms / 1000  # type: ignore[arg-type]

    monkeypatch.setattr("template.data.workers.time.perf_counter", lambda: now)
    return choose_workers(read, 1000, 32, cores, on_cpu)


def test_workers_are_as_many_as_the_reading_is_worth_and_the_cores_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    assert measured(monkeypatch, 0.1, 8, False)[0] == 0  # 3.2 ms a batch
    assert measured(monkeypatch, 0.5, 8, False)[0] == 4  # 16 ms a batch
    assert measured(monkeypatch, 5, 8, False)[0] == 8
    assert measured(monkeypatch, 5, 8, True)[0] == 8
    assert measured(monkeypatch, 5, 1, True)[0] == 0
    workers, why = measured(monkeypatch, 0.5, 2, True)
    assert workers == 2
    assert "a batch of 32 takes 16.0 ms" in why
    assert "2 cores, which the network shares: about 8.0 ms with workers" in why


def test_measuring_leaves_random_state_as_it_was(photos: Path) -> None:
    read = KeyedBatches(Images(DataModule(photos).splits["train"], SMALL.sample), 0).__getitems__
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    choose_workers(read, 32, 8, 2, True, budget_s=0.05)
    assert torch.equal(torch.rand(3), expected)


def test_auto_prints_its_choice_and_why(photos: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="template"):
        logging.getLogger("template").propagate = True
        fitted(photos, epochs=1, num_workers="auto")
    assert "data.num_workers auto: " in caplog.text
    assert "ms in one process" in caplog.text
    assert "batches not pinned: no accelerator" in caplog.text


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"num_workers": -1}, "data.num_workers is -1; expected 0 or more, or auto"),
        ({"max_damaged": -1}, "data.max_damaged is -1"),
        ({"store_size": 100}, "data.store_size is 100, and preprocessing needs 224"),
        ({"val_fraction": 1.0}, "data.val_fraction is 1"),
    ],
)
def test_values_out_of_range_are_refused(settings: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        DataModule(Path(), **settings)  # type: ignore[arg-type]


def test_the_data_set_pickles_for_workers_that_are_spawned(photos: Path, tmp_path: Path) -> None:
    from template.data.cache import Cache

    index = DataModule(photos).splits["train"]
    transform = TrainTransform(SMALL, Augmentation(crop_scale=0.5, trivial_augment=True))
    batches = KeyedBatches(Images(index, transform, Cache.of(index, tmp_path / "cache")), 0)
    keys = [(0, i) for i in range(len(index))]
    assert torch.equal(
        pickle.loads(pickle.dumps(batches)).__getitems__(keys)["image"], batches.__getitems__(keys)["image"]
    )


@pytest.mark.slow
def test_spawned_workers_read_what_this_process_reads(photos: Path) -> None:
    index = DataModule(photos).splits["train"]
    batches = KeyedBatches(Images(index, TrainTransform(SMALL, Augmentation(crop_scale=0.5))), 0)
    loaded = [
        batch["image"]
        for workers in (0, 2)
        for batch in DataLoader(
            batches,
            batch_sampler=EvalSampler(len(index), len(index)),
            num_workers=workers,
            multiprocessing_context="spawn" if workers else None,
            collate_fn=_handed_over,
        )
    ]
    assert torch.equal(*loaded)


def test_images_in_memory_are_fetched_as_one_by_one() -> None:
    for shape in ((6, 8, 8), (6, 8, 8, 3)):
        pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
        index = Index(Path(), PackedStrings(str(i) for i in range(6)), np.arange(6) % 2, ("a", "b"), pixels=pixels)
        one_by_one = KeyedBatches(Images(index, SMALL.sample), 0).__getitems__([(0, 4), (0, 1)])
        together = KeyedBatches(Images(index, SMALL.sample, unchanged=8), 0).__getitems__([(0, 4), (0, 1)])
        assert all(torch.equal(one_by_one[name], together[name]) for name in ("image", "target", "key"))
