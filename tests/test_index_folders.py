"""Folders of images become an index: CASES 1, 2, 4, 8, 9 and 10, and the splits that are cut."""

from pathlib import Path

import numpy as np
import pytest
from pictures import class_folders, picture, save

from template.data.dataset import Images, read_image
from template.data.index import Index, list_images
from template.data.packed import PackedStrings
from template.data.sources import read_source
from template.data.transforms import Preprocessing
from template.errors import InputError


def read_folder(root: Path, fractions: tuple[float, float], split_seed: int = 0) -> dict[str, Index]:
    return read_source("folder", root, fractions, split_seed)


def test_classes_are_the_folders_with_images_and_hidden_ones_are_skipped_with_one_note(tmp_path: Path) -> None:
    class_folders(tmp_path, ["a", "b"], each=4)
    save(tmp_path / ".ipynb_checkpoints" / "0.png", picture(0))
    train = read_folder(tmp_path, (0.25, 0))["train"]
    assert train.class_names == ("a", "b")
    assert len(train.notes) == 1
    assert ".ipynb_checkpoints" in train.notes[0]


def test_labels_of_every_split_are_numbered_by_train(tmp_path: Path) -> None:
    class_folders(tmp_path / "train", ["a", "b", "c"])
    class_folders(tmp_path / "val", ["b", "c"])
    val = read_folder(tmp_path, (0, 0))["val"]
    assert [(path, int(target)) for path, target in zip(val.paths, val.targets, strict=True)] == [
        *((f"val/b/{i}.png", 1) for i in range(3)),
        *((f"val/c/{i}.png", 2) for i in range(3)),
    ]
    assert val.notes == ("val: support 0 for class a",)


def test_a_class_that_train_does_not_have_is_refused(tmp_path: Path) -> None:
    class_folders(tmp_path / "train", ["a", "b", "c"])
    class_folders(tmp_path / "val", ["b", "c", "d"])
    with pytest.raises(InputError, match="class 'd' in val is not in train"):
        read_folder(tmp_path, (0, 0))


def test_clutter_of_desktops_is_not_counted(tmp_path: Path) -> None:
    class_folders(tmp_path, ["a", "b"], each=4)
    for clutter in (".DS_Store", "Thumbs.db", "._0.png", "notes.txt"):
        (tmp_path / "a" / clutter).write_bytes(b"clutter")
    skipped: list[str] = []
    assert list(list_images(tmp_path, skipped)) == [f"{c}/{i}.png" for c in "ab" for i in range(4)]
    assert sorted(Path(path).name for path in skipped) == [".DS_Store", "._0.png", "Thumbs.db", "notes.txt"]
    splits = read_folder(tmp_path, (0.25, 0))
    assert len(splits["train"]) + len(splits["val"]) == 8
    assert "skipped 4 that are no images" in splits["train"].notes[0]


def test_a_path_in_any_language_comes_back_as_it_is(tmp_path: Path) -> None:
    class_folders(tmp_path / "données", ["猫 1", "ñ"], each=4)
    train = read_folder(tmp_path / "données", (0.25, 0))["train"]
    assert train.class_names == ("ñ", "猫 1")
    assert train.paths[-1].startswith("猫 1/")
    assert all((tmp_path / "données" / path).is_file() for path in train.paths)


def test_a_folder_named_2_is_class_2_whatever_its_number(tmp_path: Path) -> None:
    names = [str(n) for n in range(12)]
    class_folders(tmp_path / "train", names, each=1)
    class_folders(tmp_path / "val", names, each=1)
    train = read_folder(tmp_path, (0.1, 0))["train"]
    row = train.paths.index("train/2/0.png")
    assert train.class_names[train.targets[row]] == "2"


def test_images_directly_in_the_class_folders_parent_are_named_as_skipped(tmp_path: Path) -> None:
    class_folders(tmp_path, ["a", "b"], each=4)
    save(tmp_path / "lost.png", picture(0))
    assert "lost.png" in read_folder(tmp_path, (0.25, 0))["train"].notes[0]


def test_an_empty_class_folder_is_left_out_with_a_note(tmp_path: Path) -> None:
    class_folders(tmp_path, ["a", "b"], each=4)
    (tmp_path / "c").mkdir()
    train = read_folder(tmp_path, (0.25, 0))["train"]
    assert train.class_names == ("a", "b")
    assert "class folder c" in train.notes[0]


@pytest.mark.parametrize("missing", ["no_such", "empty"])
def test_a_folder_without_classes_says_what_is_needed(tmp_path: Path, missing: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"point data.root at your images|at least 2 are needed"):
        read_folder(tmp_path / missing, (0, 0))


def test_split_folders_without_train_are_refused(tmp_path: Path) -> None:
    class_folders(tmp_path / "val", ["a", "b"])
    with pytest.raises(InputError, match="has val/ but no train/ folder"):
        read_folder(tmp_path, (0, 0))


def test_cut_splits_are_stratified_disjoint_and_follow_their_seed(tmp_path: Path) -> None:
    class_folders(tmp_path, ["a", "b"], each=20)
    splits = read_folder(tmp_path, (0.1, 0.2), split_seed=0)
    assert {name: list(split.counts()) for name, split in splits.items()} == {
        "train": [14, 14],
        "val": [2, 2],
        "test": [4, 4],
    }
    paths = [path for split in splits.values() for path in split.paths]
    assert len(set(paths)) == 40
    assert list(read_folder(tmp_path, (0.1, 0.2), split_seed=0)["val"].paths) == list(splits["val"].paths)
    assert list(read_folder(tmp_path, (0.1, 0.2), split_seed=1)["val"].paths) != list(splits["val"].paths)


def test_the_shares_of_the_cut_are_of_all_samples(tmp_path: Path) -> None:
    class_folders(tmp_path, ["a", "b"], each=50)
    splits = read_folder(tmp_path, (0.1, 0.5))
    assert {name: len(split) for name, split in splits.items()} == {"train": 40, "val": 10, "test": 50}


def test_a_multi_label_target_is_float_and_keeps_its_one_row(tmp_path: Path) -> None:
    save(tmp_path / "0.png", picture(0))
    targets = np.array([[0, 1, 1]], dtype=np.uint8)
    index = Index(tmp_path, PackedStrings(["0.png"]), targets, ("a", "b", "c"))
    _, target = Images(index, Preprocessing(size=8).sample)[0, 0]
    assert target.tolist() == [0.0, 1.0, 1.0]
    assert target.is_floating_point()


def test_packed_strings_are_a_sequence() -> None:
    words = ["", "ñ/猫.png", "b", "c" * 300]
    packed = PackedStrings(words)
    assert list(packed) == words
    assert packed[-1] == words[-1]
    assert packed[1:3] == words[1:3]
    with pytest.raises(IndexError):
        packed[4]
    assert list(packed.take(np.array([3, 0, 1, 1]))) == [words[3], words[0], words[1], words[1]]


def test_a_fingerprint_changes_with_a_path_a_label_and_a_class_name() -> None:
    def fingerprint(paths: list[str], targets: list[int], names: tuple[str, ...]) -> str:
        return Index(Path(), PackedStrings(paths), np.array(targets), names).fingerprint

    same = fingerprint(["a", "bc"], [0, 1], ("x", "y"))
    assert same == fingerprint(["a", "bc"], [0, 1], ("x", "y"))
    others = [
        fingerprint(["ab", "c"], [0, 1], ("x", "y")),
        fingerprint(["a", "bc"], [1, 1], ("x", "y")),
        fingerprint(["a", "bc"], [0, 1], ("x", "z")),
    ]
    assert same not in others


def test_a_missing_file_is_named_when_it_is_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot read .*gone\.png"):
        read_image(tmp_path / "gone.png")
