"""The kept scan of a folder, damaged files and duplicates: CASES 3 and 12."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pictures import class_folders, picture, save
from PIL import Image

import template.data.index as index_module
from template.data.datamodule import DataModule
from template.data.index import Index, list_images, read_folder
from template.data.verify import damaged_files, duplicates_across, leave_out_damaged
from template.errors import InputError


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The folders that were really looked into, in order."""
    looked: list[str] = []
    images = index_module._Scan.images

    def images_and_tell(self: object, folder: str, prefix: str = "") -> list[str]:
        looked.append(Path(folder).name)
        return images(self, folder, prefix)  # type: ignore[arg-type]

    monkeypatch.setattr(index_module._Scan, "images", images_and_tell)
    return looked


def settle(root: Path) -> None:
    """Make every folder an hour old: a scan of folders that changed just now is not trusted."""
    for folder in [root, *(path for path in root.rglob("*") if path.is_dir())]:
        os.utime(folder, (folder.stat().st_atime - 3600,) * 2)


def same(a: dict[str, Index], b: dict[str, Index]) -> bool:
    return [(k, v.fingerprint, v.notes, v.root) for k, v in a.items()] == [
        (k, v.fingerprint, v.notes, v.root) for k, v in b.items()
    ]


def test_an_unchanged_folder_is_scanned_once(tmp_path: Path, scans: list[str]) -> None:
    root = class_folders(tmp_path / "photos" / "train", ["a", "b"]).parent
    class_folders(root / "val", ["b"])
    (root / "train" / "notes.txt").write_text("x")
    settle(root)
    first = read_folder(root)
    assert scans == ["a", "b", "b"]
    assert same(read_folder(root), first)
    assert scans == ["a", "b", "b"]


CHANGES: dict[str, Callable[[Path], object]] = {
    "a file more": lambda root: save(root / "a" / "9.png", picture(9)),
    "a file less": lambda root: (root / "b" / "0.png").unlink(),
    "a file renamed": lambda root: (root / "b" / "0.png").rename(root / "b" / "7.png"),
    "a class more": lambda root: class_folders(root, ["d"]),
    "a class less": lambda root: shutil.rmtree(root / "c"),
    "a file in an empty class": lambda root: save(root / "empty" / "0.png", picture(5)),
    "a file deeper": lambda root: save(root / "a" / "deep" / "1.png", picture(8)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_any_change_is_seen(tmp_path: Path, change: Callable[[Path], object]) -> None:
    root = class_folders(tmp_path / "photos", ["a", "b", "c"])
    (root / "empty").mkdir()
    save(root / "a" / "deep" / "0.png", picture(7))
    settle(root)
    before = read_folder(root)["train"]
    change(root)
    after = read_folder(root)["train"]
    assert after.fingerprint != before.fingerprint
    expected = [f"{name}/{file}" for name in after.class_names for file in list_images(root / name, [])]
    assert list(after.paths) == expected


def test_a_scan_of_a_folder_that_changed_just_now_is_not_trusted(tmp_path: Path, scans: list[str]) -> None:
    root = class_folders(tmp_path / "photos", ["a", "b"])
    read_folder(root)
    read_folder(root)
    assert scans == ["a", "b", "a", "b"]


def test_a_damaged_scan_is_scanned_again(tmp_path: Path) -> None:
    root = class_folders(tmp_path / "photos", ["a", "b"])
    settle(root)
    first = read_folder(root)
    kept = tmp_path / ".photos.scan.npz"
    kept.write_bytes(kept.read_bytes()[:100])
    assert same(read_folder(root), first)


def test_a_moved_folder_is_scanned_where_it_is_now(tmp_path: Path) -> None:
    root = class_folders(tmp_path / "old" / "photos", ["a", "b"])
    settle(root)
    read_folder(root)
    shutil.copytree(tmp_path / "old", tmp_path / "new")
    assert read_folder(tmp_path / "new" / "photos")["train"].root == tmp_path / "new" / "photos"


def test_beside_a_folder_that_cannot_be_written_to_scanning_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = class_folders(tmp_path / "photos", ["a", "b"])
    monkeypatch.setattr("template.data.scan.beside", lambda root, suffix: tmp_path / "no" / "such" / suffix)
    assert len(read_folder(root)["train"]) == 6


def spoil(folder: Path) -> None:
    """Three files that are no images: half a JPEG, nothing at all, a web page."""
    Image.fromarray(picture(99, 200, 300)).save(folder / "half.jpg")
    whole = (folder / "half.jpg").read_bytes()
    (folder / "half.jpg").write_bytes(whole[: len(whole) // 2])
    (folder / "empty.jpg").write_bytes(b"")
    (folder / "page.png").write_text("<html><body>404</body></html>")


def test_every_damaged_file_is_found_with_its_reason(tmp_path: Path) -> None:
    root = class_folders(tmp_path / "photos", ["a", "b"], each=10)
    spoil(root / "a")
    train = read_folder(root)["train"]
    found = {train.paths[row]: why for row, why in damaged_files(train).items()}
    assert set(found) == {"a/half.jpg", "a/empty.jpg", "a/page.png"}
    assert "truncated" in found["a/half.jpg"]
    assert "cannot identify image file" in found["a/page.png"]


def test_damaged_files_up_to_the_limit_are_left_out_with_their_count(tmp_path: Path) -> None:
    root = class_folders(tmp_path / "photos", ["a", "b"], each=10)
    spoil(root / "a")
    splits = read_folder(root)
    train = leave_out_damaged(splits, limit=3)["train"]
    assert train.counts().tolist() == [10, 10]
    assert all(path.endswith("png") and "page" not in path for path in train.paths)
    assert "train: 3 damaged files of 23 are left out" in train.notes[-1]
    with pytest.raises(InputError, match=r"3 damaged files, and data.max_damaged is 2: .*empty\.jpg"):
        leave_out_damaged(splits, limit=2)


def test_the_data_module_leaves_out_what_the_limit_allows_and_keeps_the_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = class_folders(tmp_path / "photos", ["a", "b"], each=10)
    spoil(root / "a")
    first = DataModule(root, max_damaged=3)
    assert sum(map(len, first.splits.values())) == 20
    # another rank, or a resume: nothing is looked at again, so that a file mended meanwhile changes no length
    Image.fromarray(picture(99, 200, 300)).save(root / "a" / "half.jpg")
    monkeypatch.setattr("template.data.verify.damaged_files", None)
    assert DataModule(root, max_damaged=3).fingerprints() == first.fingerprints()


def test_the_same_image_under_two_names_in_two_splits_is_found(tmp_path: Path) -> None:
    root = tmp_path / "photos"
    class_folders(root / "train", ["a", "b"])
    save(root / "val" / "a" / "x.png", picture(50))
    save(root / "val" / "b" / "y.png", picture(51))
    shutil.copy(root / "train" / "b" / "1.png", root / "val" / "b" / "other name.png")
    shutil.copy(root / "train" / "b" / "1.png", root / "train" / "b" / "within train.png")
    assert duplicates_across(read_folder(root)) == [
        ("train/b/1.png", "val/b/other name.png"),
        ("train/b/within train.png", "val/b/other name.png"),
    ]
