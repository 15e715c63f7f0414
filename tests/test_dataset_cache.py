"""The cache of decoded images: the same pixels, from many processes, for these files and settings alone."""

import multiprocessing
import os
import pickle
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from pictures import class_folders, picture, save
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader

from template.data.cache import Cache
from template.data.datamodule import KeyedBatches, _handed_over
from template.data.dataset import Images
from template.data.index import Index, read_folder
from template.data.reading import Picture
from template.data.sampler import EvalSampler
from template.data.transforms import Augmentation, Preprocessing, TrainTransform
from template.errors import InputError


def index_of(root: Path, suffix: str = ".png", each: int = 6) -> Index:
    return read_folder(class_folders(root, ["a", "b"], each, suffix))["train"]


def batches_of(index: Index, cache: Cache | None, workers: int = 0, unchanged: int | None = None) -> list[Tensor]:
    images = Images(index, Preprocessing(size=12).sample, cache, unchanged)
    loader = DataLoader(
        KeyedBatches(images, 0), batch_sampler=EvalSampler(len(index), 5), num_workers=workers, collate_fn=_handed_over
    )
    return [batch["image"] for batch in loader]


@pytest.mark.parametrize("workers", [0, 2])
def test_filled_and_read_a_cache_gives_what_decoding_gives(tmp_path: Path, workers: int) -> None:
    index = index_of(tmp_path / "photos", ".jpg")
    plain = batches_of(index, None)
    cache = Cache.of(index, tmp_path / "cache")
    for filled in (0, len(index)):
        assert len(cache) == filled
        read = batches_of(index, cache, workers)
        assert all(torch.equal(a, b) for a, b in zip(read, plain, strict=True))
    again = Cache.of(index, tmp_path / "cache")
    for path in index.paths:
        (index.root / path).write_bytes(b"no longer read")
    assert all(torch.equal(a, b) for a, b in zip(batches_of(index, again, workers), plain, strict=True))


def test_what_needs_no_draws_is_read_a_batch_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(10):
        save(tmp_path / "same" / "ab"[i % 2] / f"{i}.png", picture(i, 12, 12))
        save(tmp_path / "larger" / "ab"[i % 2] / f"{i}.png", picture(i, 20 - i, 13 + i))
    for name in ("same", "larger"):
        index = read_folder(tmp_path / name)["train"]
        cache = Cache.of(index, tmp_path / f"cache {name}")
        one_by_one = batches_of(index, None)
        with monkeypatch.context() as without:
            without.setattr(Images, "__getitem__", None)
            for kept in (None, cache, cache):
                together = batches_of(index, kept, unchanged=12)
                assert all(torch.equal(a, b) for a, b in zip(together, one_by_one, strict=True))
            if name == "same":
                cached = cache_pixels(cache)
                in_memory = Index(index.root, index.paths, index.targets, index.class_names, pixels=cached)
                together = batches_of(in_memory, None, unchanged=12)
                assert all(torch.equal(a, b) for a, b in zip(together, one_by_one, strict=True))


def test_a_subclass_with_samples_of_its_own_is_asked_for_each(tmp_path: Path) -> None:
    class Darker(Images):
        def __getitem__(self, key: tuple[int, int]) -> tuple[Tensor, Tensor]:
            image, target = super().__getitem__(key)
            return image // 2, target

    index = index_of(tmp_path)
    plain, darker = (
        KeyedBatches(kind(index, Preprocessing(size=12).sample, unchanged=12), 0).__getitems__([(0, 3), (0, 1)])
        for kind in (Images, Darker)
    )
    assert torch.equal(darker["image"], plain["image"] // 2)


def test_a_transform_that_draws_after_all_is_seeded_sample_by_sample(tmp_path: Path) -> None:
    index = index_of(tmp_path)
    draws = {
        "python": lambda: random.randrange(256),
        "numpy": lambda: np.random.randint(256),
        "torch": lambda: int(torch.randint(256, ())),
    }
    for draw in draws.values():

        def noisy(picture: Picture, draw: Callable[[], int] = draw) -> Tensor:
            return torch.full((3, 12, 12), draw(), dtype=torch.uint8)

        one_by_one, claimed = (
            KeyedBatches(Images(index, noisy, unchanged=side), 0).__getitems__([(1, 3), (1, 0), (2, 3)])["image"]
            for side in (None, 12)
        )
        assert len(one_by_one.unique()) == 3
        assert torch.equal(claimed, one_by_one)


def test_a_worker_puts_images_alone_into_shared_memory(tmp_path: Path) -> None:
    index = index_of(tmp_path)
    here, sent = (
        next(
            iter(
                DataLoader(
                    KeyedBatches(Images(index, Preprocessing(size=96).sample), 0),
                    batch_sampler=EvalSampler(len(index), 5),
                    num_workers=workers,
                    collate_fn=_handed_over,
                )
            )
        )
        for workers in (0, 1)
    )
    assert {name: tensor.is_shared() for name, tensor in sent.items()} == {"image": True, "target": False, "key": False}
    assert all(torch.equal(here[name], sent[name]) for name in here)


def cache_pixels(cache: Cache) -> np.ndarray:
    return np.stack([cache.picture(i).pixels().permute(1, 2, 0).numpy() for i in range(len(cache.index))])


def test_a_large_jpeg_is_read_at_each_resolution_as_it_is_decoded(tmp_path: Path) -> None:
    path = save(tmp_path / "photos" / "a" / "0.jpg", picture(0, 403, 605))
    save(tmp_path / "photos" / "b" / "0.jpg", picture(1, 403, 605))
    index = read_folder(tmp_path / "photos")["train"]
    cache = Cache.of(index, tmp_path / "cache")
    for size in (16, 32, 64, 300):
        plain = Preprocessing(size=size).sample(Images(index, Preprocessing().sample).picture(0))
        for _ in range(2):
            assert torch.equal(Preprocessing(size=size).sample(cache.picture(0)), plain)
    path.unlink()
    assert cache.picture(0).pixels(12.0).shape == (3, 51, 76)


def test_a_store_size_gives_the_same_with_and_without_a_cache(tmp_path: Path) -> None:
    index = index_of(tmp_path / "photos", each=3)
    preprocessing = Preprocessing(size=6, store_size=8)
    cache = Cache.of(index, tmp_path / "cache", preprocessing)
    transform = TrainTransform(preprocessing, Augmentation(crop_scale=0.5))
    plain, cached = (KeyedBatches(Images(index, transform, which), 0) for which in (None, cache))
    keys = [(1, i) for i in range(len(index))]
    for _ in range(2):
        assert torch.equal(cached.__getitems__(keys)["image"], plain.__getitems__(keys)["image"])
    stored = cache.picture(0)
    assert (stored.height, stored.width) == (8, 10)  # of 12 x 16
    whole = KeyedBatches(Images(index, TrainTransform(Preprocessing(size=6), Augmentation(crop_scale=0.5))), 0)
    assert not torch.equal(whole.__getitems__(keys)["image"], plain.__getitems__(keys)["image"])


CHANGES: dict[str, Callable[[Path], object]] = {
    "a file": lambda root: save(root / "a" / "0.png", picture(77)),
    "a file's time": lambda root: os.utime(root / "b" / "1.png", (1e9, 1e9)),
    "the files there are": lambda root: save(root / "a" / "more.png", picture(78)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_when_the_files_change_the_cache_starts_anew(tmp_path: Path, change: Callable[[Path], object]) -> None:
    root = tmp_path / "photos"
    index = index_of(root)
    batches_of(index, Cache.of(index, tmp_path / "cache"))
    change(root)
    index = read_folder(root)["train"]
    cache = Cache.of(index, tmp_path / "cache")
    assert len(cache) == 0
    assert sum(path.is_dir() for path in (tmp_path / "cache").iterdir()) == 1
    assert all(torch.equal(a, b) for a, b in zip(batches_of(index, cache), batches_of(index, None), strict=True))


def test_another_store_size_is_another_cache_and_another_network_size_is_not(tmp_path: Path) -> None:
    index = index_of(tmp_path / "photos")
    batches_of(index, Cache.of(index, tmp_path / "cache", Preprocessing(size=12)))
    assert len(Cache.of(index, tmp_path / "cache", Preprocessing(size=8))) == len(index)
    assert len(Cache.of(index, tmp_path / "cache", Preprocessing(size=8, store_size=10))) == 0


def test_a_disk_too_small_is_refused_with_the_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from collections import namedtuple

    usage = namedtuple("usage", "total used free")
    index = index_of(tmp_path / "photos")  # 12 images of 12 x 16 x 3 bytes
    need = 12 * 12 * 16 * 3
    for free, fits in ((need, False), (2 * need, True)):
        monkeypatch.setattr("template.data.cache.shutil.disk_usage", lambda folder, free=free: usage(0, 0, free))
        if fits:
            Cache.of(index, tmp_path / "cache")
        else:
            with pytest.raises(InputError, match=r"needs about 0.0 GB .* for 12 images.*set data.store_size"):
                Cache.of(index, tmp_path / "cache")


def test_a_full_disk_is_named_when_it_is_met(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = index_of(tmp_path / "photos")
    cache = Cache.of(index, tmp_path / "cache")

    def full(*arguments: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("template.data.cache.os.pwrite", full)
    with pytest.raises(InputError, match=r"data.cache: cannot write to .*No space left"):
        cache.picture(0).pixels()
    assert len(cache) == 0


def test_a_damaged_file_is_named_and_not_kept(tmp_path: Path) -> None:
    index = index_of(tmp_path / "photos", ".jpg")
    path = index.root / index.paths[0]
    path.write_bytes(path.read_bytes()[:-30])
    cache = Cache.of(index, tmp_path / "cache")
    for _ in range(2):
        with pytest.raises(InputError, match="cannot read"):
            cache.picture(0).pixels()
    assert len(cache) == 0


def test_a_pickled_cache_reads_and_fills_the_same_file(tmp_path: Path) -> None:
    index = index_of(tmp_path / "photos")
    cache = Cache.of(index, tmp_path / "cache")
    other = pickle.loads(pickle.dumps(cache))
    expected = other.picture(3).pixels()
    assert len(cache) == 1
    assert torch.equal(cache.picture(3).pixels(), expected)
    assert np.array_equal(expected.permute(1, 2, 0), np.asarray(Image.open(index.root / index.paths[3])))


@pytest.mark.parametrize("written", [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2)])
def test_a_row_that_another_process_is_writing_is_not_there_yet(tmp_path: Path, written: tuple[int, ...]) -> None:
    index = index_of(tmp_path / "photos", ".jpg")
    plain = batches_of(index, None)
    cache = Cache.of(index, tmp_path / "cache")
    batches_of(index, cache)
    row = cache.table[3].copy()
    cache.table[3] = 0
    cache.table[3, list(written)] = row[list(written)]
    assert all(torch.equal(a, b) for a, b in zip(batches_of(index, cache), plain, strict=True))
    assert cache.table[3, :3].tolist() == row[:3].tolist()


def test_two_ranks_that_open_and_fill_one_cache_at_once_both_read_what_decoding_gives(tmp_path: Path) -> None:
    index = index_of(tmp_path / "photos", ".jpg", each=40)
    plain = batches_of(index, None)
    ranks = multiprocessing.get_context("fork")
    start = ranks.Barrier(2)

    def rank() -> None:
        torch.set_num_threads(1)
        start.wait(30)
        cache = Cache.of(index, tmp_path / "cache")
        for _ in range(2):
            assert all(torch.equal(a, b) for a, b in zip(batches_of(index, cache), plain, strict=True))

    processes = [ranks.Process(target=rank) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    kept = Cache.of(index, tmp_path / "cache")
    assert len(kept) == len(index)
    assert all(torch.equal(a, b) for a, b in zip(batches_of(index, kept), plain, strict=True))
