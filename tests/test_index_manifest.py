"""Manifests become an index: columns, splits, groups, many labels, and every fault by its row."""

import json
from pathlib import Path

import numpy as np
import pytest

from template.data.index import Index
from template.data.sources import read_source
from template.errors import InputError

NO_CUT = (0.0, 0.0)


def write(path: Path, header: list[str], rows: list[list[object]]) -> Path:
    """One table as CSV, TSV or JSON Lines, by the suffix."""
    table: list[list[object]] = [list(header), *rows]
    if path.suffix == ".jsonl":
        lines = [json.dumps(dict(zip(header, row, strict=True)), ensure_ascii=False) for row in rows]
    else:
        lines = [{".csv": ",", ".tsv": "\t"}[path.suffix].join(str(value) for value in row) for row in table]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def labelled(index: Index) -> list[tuple[str, str]]:
    return [(path, index.class_names[target]) for path, target in zip(index.paths, index.targets, strict=True)]


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl"])
def test_a_manifest_of_any_kind_gives_its_rows_in_order(tmp_path: Path, suffix: str) -> None:
    rows: list[list[object]] = [["x/1.png", "dog"], ["données/猫 1.png", "cat"], ["3.png", "dog"]]
    manifest = write(tmp_path / f"labels{suffix}", ["path", "label"], rows)
    train = read_source(str(manifest), tmp_path, NO_CUT, 0)["train"]
    assert train.class_names == ("cat", "dog")
    assert labelled(train) == [tuple(row) for row in rows]
    assert train.root == tmp_path


def test_a_manifest_is_also_found_in_the_root(tmp_path: Path) -> None:
    write(tmp_path / "labels.csv", ["path", "label"], [["1.png", "a"], ["2.png", "b"]])
    assert len(read_source("labels.csv", tmp_path, NO_CUT, 0)["train"]) == 2
    with pytest.raises(InputError, match=r"data.source is 'other.csv', and there is no such file"):
        read_source("other.csv", tmp_path, NO_CUT, 0)


def test_quoted_commas_a_byte_order_mark_and_blank_lines_are_read(tmp_path: Path) -> None:
    text = '\ufeffpath,label\r\n"a,1.png",x\r\n\r\nb.png,"y ""z"""\r\n'
    (tmp_path / "labels.csv").write_bytes(text.encode())
    assert labelled(read_source("labels.csv", tmp_path, NO_CUT, 0)["train"]) == [("a,1.png", "x"), ("b.png", 'y "z"')]


def test_given_splits_are_kept_under_any_of_their_names_and_numbered_by_train(tmp_path: Path) -> None:
    rows: list[list[object]] = [[f"{i}.png", "abc"[i % 3], "training"] for i in range(6)]
    rows += [[f"{i}.png", "bc"[i % 2], "valid"] for i in range(6, 10)]
    rows += [["10.png", "a", "Test"]]
    write(tmp_path / "labels.csv", ["path", "label", "split"], rows)
    splits = read_source("labels.csv", tmp_path, (0.5, 0.5), 0)
    assert {name: len(index) for name, index in splits.items()} == {"train": 6, "val": 4, "test": 1}
    assert [pair for index in splits.values() for pair in labelled(index)] == [(row[0], row[1]) for row in rows]
    assert splits["val"].notes == ("val: support 0 for class a",)


def test_a_class_that_train_does_not_have_is_refused_by_its_row(tmp_path: Path) -> None:
    rows: list[list[object]] = [["1.png", "a", "train"], ["2.png", "b", "train"], ["3.png", "d", "val"]]
    write(tmp_path / "labels.csv", ["path", "label", "split"], rows)
    with pytest.raises(InputError, match=r"class 'd' in val is not in train: row 3 of .*labels\.csv"):
        read_source("labels.csv", tmp_path, NO_CUT, 0)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_one_column_a_class_is_multi_label(tmp_path: Path, suffix: str) -> None:
    rows: list[list[object]] = [["1.png", 1, 0, 1], ["2.png", 0, 0, 0], ["3.png", 1, 1, 1]]
    write(tmp_path / f"labels{suffix}", ["path", "sea", "boat", "sky"], rows)
    train = read_source(f"labels{suffix}", tmp_path, NO_CUT, 0)["train"]
    assert train.class_names == ("sea", "boat", "sky")
    assert train.targets.tolist() == [row[1:] for row in rows]
    assert train.targets.dtype == np.uint8
    assert train.counts().tolist() == [2, 1, 2]


def test_multi_label_splits_are_cut_at_random_without_overlap(tmp_path: Path) -> None:
    write(tmp_path / "labels.csv", ["path", "a", "b"], [[f"{i}.png", i % 2, int(i == 0)] for i in range(20)])
    splits = read_source("labels.csv", tmp_path, (0.2, 0.1), 0)
    assert {name: len(index) for name, index in splits.items()} == {"train": 14, "val": 4, "test": 2}
    assert len({path for index in splits.values() for path in index.paths}) == 20


def test_no_group_is_in_two_of_the_splits_that_are_cut_and_classes_stay_balanced(tmp_path: Path) -> None:
    rows: list[list[object]] = [[f"{i}.png", "ab"[i // 4 % 2], f"patient {i // 4}"] for i in range(400)]
    write(tmp_path / "labels.csv", ["path", "label", "group"], rows)
    splits = read_source("labels.csv", tmp_path, (0.2, 0.1), 0)
    groups = {name: {int(path[:-4]) // 4 for path in index.paths} for name, index in splits.items()}
    assert {name: len(numbers) for name, numbers in groups.items()} == {"train": 70, "val": 20, "test": 10}
    assert len(set.union(*groups.values())) == 100
    assert {name: index.counts().tolist() for name, index in splits.items()} == {
        "train": [140, 140],
        "val": [40, 40],
        "test": [20, 20],
    }
    again = read_source("labels.csv", tmp_path, (0.2, 0.1), 1)
    assert list(again["val"].paths) != list(splits["val"].paths)


def test_a_group_of_mixed_classes_counts_as_its_commonest(tmp_path: Path) -> None:
    rows: list[list[object]] = [[f"{i}.png", "b" if i % 3 else "a", f"g{i // 3}"] for i in range(60)]  # each a, b, b
    rows += [[f"{i}.png", "a", f"g{i // 3}"] for i in range(60, 120)]
    write(tmp_path / "labels.csv", ["path", "label", "group"], rows)
    val = read_source("labels.csv", tmp_path, (0.5, 0), 0)["val"]
    of_b = {int(path[:-4]) // 3 for path in val.paths if int(path[:-4]) < 60}
    assert len(of_b) == 10


def test_a_group_in_two_given_splits_is_refused_by_name(tmp_path: Path) -> None:
    rows: list[list[object]] = [
        ["1.png", "a", "train", "p1"],
        ["2.png", "b", "train", "p2"],
        ["3.png", "a", "val", "p1"],
    ]
    write(tmp_path / "labels.csv", ["path", "label", "split", "group"], rows)
    with pytest.raises(InputError, match="group 'p1' is in train and val"):
        read_source("labels.csv", tmp_path, NO_CUT, 0)


def test_columns_that_are_not_used_are_told(tmp_path: Path) -> None:
    write(tmp_path / "labels.csv", ["path", "label", "age"], [["1.png", "a", 3], ["2.png", "b", 4]])
    assert "columns age are not used" in read_source("labels.csv", tmp_path, NO_CUT, 0)["train"].notes[0]


FAULTS = {
    "no path column": ("pth,label\n1.png,a\n", "has no column 'path'; did you mean 'pth'"),
    "no label": ("path,split\n1.png,train\n", "neither a column 'label' nor one column a class"),
    "empty path": ("path,label\n1.png,a\n,b\n", "row 2 of .* has no path"),
    "empty label": ("path,label\n1.png,a\n2.png,\n", "row 2 of .* has no label"),
    "two of one name": ("path,label,label\n1.png,a,a\n", "two columns of one name"),
    "a value too many": ("path,label\n1.png,a\n2.png,b,c\n", "row 2 of .* has 3 values; its header has 2"),
    "no rows": ("path,label\n", "has no rows"),
    "one class": ("path,label\n1.png,a\n2.png,a\n", r"one class in train \(a\)"),
    "unknown split": ("path,label,split\n1.png,a,trian\n", "split 'trian'; did you mean 'train'"),
    "nothing in train": ("path,label,split\n1.png,a,val\n", "no row whose split is train"),
    "a two": ("path,a,b\n1.png,0,1\n2.png,2,0\n", "row 2 of .* has '2' for class 'a'; expected 0 or 1"),
    "a word": ("path,kind,b\n1.png,0,1\n2.png,cat,0\n", "row 2 of .* has 'cat' for class 'kind'"),
}


@pytest.mark.parametrize(("text", "said"), FAULTS.values(), ids=FAULTS)
def test_each_fault_is_named_with_its_row(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "labels.csv").write_text(text)
    with pytest.raises(InputError, match=said):
        read_source("labels.csv", tmp_path, NO_CUT, 0)


@pytest.mark.parametrize(
    ("second", "said"),
    [('{"path": "2.png"', "row 2 of .* is not JSON"), ('{"path": "2.png"}', "row 2 of .*expected keys path, label")],
)
def test_a_bad_line_of_json_is_named(tmp_path: Path, second: str, said: str) -> None:
    (tmp_path / "labels.jsonl").write_text('{"path": "1.png", "label": "a"}\n' + second + "\n")
    with pytest.raises(InputError, match=said):
        read_source("labels.jsonl", tmp_path, NO_CUT, 0)


def test_a_manifest_in_another_encoding_says_so(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_bytes("path,label\né.png,a\n".encode("latin-1"))
    with pytest.raises(InputError, match="is not UTF-8"):
        read_source("labels.csv", tmp_path, NO_CUT, 0)


def test_rows_of_several_chunks_are_all_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("template.data.manifest._CHUNK", 7)
    rows: list[list[object]] = [[f"{i}.png", f"class {i % 5}"] for i in range(50)]
    write(tmp_path / "labels.csv", ["path", "label"], rows)
    assert labelled(read_source("labels.csv", tmp_path, NO_CUT, 0)["train"]) == [tuple(row) for row in rows]


def test_an_index_keeps_at_most_its_paths_and_32_bytes_a_sample(tmp_path: Path) -> None:
    import tracemalloc

    n = 50_000
    write(tmp_path / "labels.csv", ["path", "label"], [[f"folder/{i:06d}.png", f"class {i % 50}"] for i in range(n)])
    read_source("labels.csv", tmp_path, NO_CUT, 0)  # imports and caches are not the index's
    tracemalloc.start()
    try:
        train = read_source("labels.csv", tmp_path, NO_CUT, 0)["train"]
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(train) == n
    assert kept <= n * (len("folder/000000.png") + 32)
