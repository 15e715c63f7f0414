"""A table of images, CSV, TSV or JSON Lines, becomes an index: one row an image, read a chunk at a time."""

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from template.data.index import SPLIT_FOLDERS, Index
from template.data.packed import PackedStrings, grow
from template.errors import InputError, did_you_mean

MANIFEST_SUFFIXES = (".csv", ".tsv", ".jsonl")
_CHUNK = 1 << 14  # rows that are Python objects at a time
_SPLITS = {word: split for split, words in SPLIT_FOLDERS.items() for word in words}
_ZERO_OR_ONE = {"0": 0, "1": 1, "0.0": 0, "1.0": 1, "false": 0, "true": 1, "False": 0, "True": 1}
Columns = dict[str, Sequence[Any]]


def read_manifest(file: Path, root: Path) -> tuple[dict[str, Index], np.ndarray | None]:
    """Index the rows of a manifest into its splits; nothing is opened but the manifest.

    Its columns are ``path``, relative to ``root`` or absolute; ``label``, a class name, or one column a class with 0
    or 1 for images of any number of classes; optionally ``split`` (train, val, test) and ``group``. Classes are
    those of train: its labels, sorted, or the columns in their order.

    Returns:
        The splits, and (N,) the group of each training sample, or None without groups.

    Raises:
        InputError: A column is missing, a value cannot be understood, a class is not in train, or a group is in two
            splits; the message names the row, counted from 1.
    """
    paths = PackedStrings()
    labels, split_words, group_names = _Codes(), _Codes(), _Codes()
    classes: list[str] = []
    unused: list[str] = []
    start = 1
    for columns in _chunks(file):
        if start == 1:
            classes, unused = _class_columns(file, list(columns))
            many = np.empty((0, len(classes)), dtype=np.uint8)
        _refuse_empty(file, "path", columns["path"], start)
        paths.extend(columns["path"])
        if classes:
            grow(many, np.stack([_zeros_and_ones(file, name, columns[name], start) for name in classes], axis=1))
        else:
            _refuse_empty(file, "label", columns["label"], start)
            labels.extend(columns["label"])
        split_words.extend(columns.get("split", ()))
        group_names.extend(columns.get("group", ()))
        start += len(columns["path"])
    if start == 1:
        raise InputError(f"{file} has no rows")

    group = group_names.codes if group_names.names else None
    split = np.zeros(start - 1, dtype=np.int8)
    if split_words.names:
        split = _split_numbers(file, split_words)[split_words.codes]
        if group is not None:
            _refuse_straddling(file, split, group, group_names.names)
    whole = _Table(file, root, paths, many if classes else labels.codes, classes or labels.names)
    notes = (f"{file}: columns {', '.join(unused)} are not used",) if unused else ()
    return whole.cut(split, notes), None if group is None else group[split == 0]


class _Codes:
    """Numbers strings in the order in which they are first met.

    Attributes:
        codes: (N,) int64 numbers.
    """

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.codes = np.empty(0, dtype=np.int64)

    @property
    def names(self) -> list[str]:
        return list(self.numbers)

    def extend(self, strings: Sequence[Any]) -> None:
        for name in dict.fromkeys(strings):
            self.numbers.setdefault(name, len(self.numbers))
        grow(self.codes, np.fromiter(map(self.numbers.__getitem__, strings), dtype=np.int64, count=len(strings)))


class _Table:
    """All rows; ``targets`` are codes into ``names``, or (N, K) zeros and ones of the classes ``names``."""

    def __init__(self, file: Path, root: Path, paths: PackedStrings, targets: np.ndarray, names: Sequence[str]) -> None:
        self.file, self.root, self.paths, self.targets, self.names = file, root, paths, targets, names

    def cut(self, split: np.ndarray, notes: tuple[str, ...]) -> dict[str, Index]:
        """Rows to splits; ``split`` has the number of each row's split."""
        class_names, targets = tuple(self.names), self.targets
        if not (split == 0).any():
            raise InputError(f"{self.file} has no row whose split is train")
        if targets.ndim == 1:
            in_train = np.zeros(len(self.names), dtype=bool)
            in_train[targets[split == 0]] = True
            class_names = tuple(sorted(name for name, known in zip(self.names, in_train, strict=True) if known))
            if len(class_names) < 2:
                raise InputError(f"{self.file} has one class in train ({class_names[0]}); at least 2 are needed")
            number = {name: i for i, name in enumerate(class_names)}
            for row in np.flatnonzero(~in_train[targets])[:1]:
                where = list(SPLIT_FOLDERS)[split[row]]
                raise InputError(
                    f"class {self.names[targets[row]]!r} in {where} is not in train: row {row + 1} of {self.file}; "
                    f"classes: {', '.join(class_names)}"
                )
            targets = np.array([number.get(name, -1) for name in self.names])[targets]
        splits = {}
        for i, name in enumerate(SPLIT_FOLDERS):
            rows = np.flatnonzero(split == i)
            if len(rows) == len(split):
                splits[name] = Index(self.root, self.paths, targets, class_names, notes=notes)
            elif len(rows):
                index = Index(self.root, self.paths.take(rows), targets[rows], class_names)
                absent = [class_names[k] for k in np.flatnonzero(index.counts() == 0)]
                support = f"{name}: support 0 for class{'es' * (len(absent) > 1)} {', '.join(absent)}"
                splits[name] = Index(
                    self.root,
                    index.paths,
                    index.targets,
                    class_names,
                    notes=(*notes * (i == 0), *((support,) if absent else ())),
                )
        return splits


def _chunks(file: Path) -> Iterator[Columns]:
    """Columns by name, a chunk of rows at a time."""
    read: Callable[[Path, TextIO], Iterator[Columns]] = _json_chunks if file.suffix.lower() == ".jsonl" else _csv_chunks
    try:
        with file.open(newline="", encoding="utf-8-sig") as text:
            yield from read(file, text)
    except UnicodeDecodeError as error:
        raise InputError(f"{file} is not UTF-8: {error}; save it as UTF-8") from None


def _csv_chunks(file: Path, text: TextIO) -> Iterator[Columns]:
    rows = csv.reader(text, delimiter="\t" if file.suffix.lower() == ".tsv" else ",")
    header = next(rows, [])
    if len(set(header)) < len(header):
        raise InputError(f"{file} has two columns of one name: {', '.join(header)}")
    start = 1
    columns: list[list[str]] = [[] for _ in header]
    # A row is a list until it is in its columns; more than 700 lists at a time wake the garbage collector: a tenth of
    # the speed.
    while chunk := list(islice(rows, 500)):
        if set(map(len, chunk)) != {len(header)}:
            chunk = _without_blank_lines(file, chunk, len(header), start)
        for column, values in zip(columns, zip(*chunk, strict=True), strict=False):
            column += values
        start += len(chunk)
        if columns and len(columns[0]) >= _CHUNK:
            yield dict(zip(header, columns, strict=True))
            columns = [[] for _ in header]
    if columns and columns[0]:
        yield dict(zip(header, columns, strict=True))


def _without_blank_lines(file: Path, chunk: list[list[str]], width: int, start: int) -> list[list[str]]:
    chunk = [row for row in chunk if row]
    for number, row in enumerate(chunk, start):
        if len(row) != width:
            raise InputError(f"row {number} of {file} has {len(row)} values; its header has {width}: {row}")
    return chunk


def _json_chunks(file: Path, text: TextIO) -> Iterator[Columns]:
    lines = (line for line in text if not line.isspace())
    start, names = 1, None
    while chunk := list(islice(lines, _CHUNK)):
        try:
            rows = json.loads(f"[{','.join(chunk)}]")
        except json.JSONDecodeError:
            rows = [_json_row(file, number, line) for number, line in enumerate(chunk, start)]
        names = names or list(rows[0])
        for number, row in enumerate(rows, start):
            if not isinstance(row, Mapping) or row.keys() != set(names):
                raise InputError(f"row {number} of {file} is {json.dumps(row)[:200]}; expected keys {', '.join(names)}")
        yield {name: [_text(row[name]) for row in rows] for name in names}
        start += len(rows)


def _json_row(file: Path, number: int, line: str) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        raise InputError(f"row {number} of {file} is not JSON: {error}") from None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False)


def _class_columns(file: Path, columns: list[str]) -> tuple[list[str], list[str]]:
    """Columns that are classes, none where there is a ``label``, and those that are not used."""
    if "path" not in columns:
        raise InputError(
            f"{file} has no column 'path'{did_you_mean('path', columns)} It has {', '.join(columns)}; expected path, "
            "label (or one column a class), and optionally split and group"
        )
    others = [column for column in columns if column not in ("path", "label", "split", "group")]
    if "label" in columns:
        return [], others
    if len(others) < 2:
        raise InputError(f"{file} has neither a column 'label' nor one column a class; it has {', '.join(columns)}")
    return others, []


def _refuse_empty(file: Path, column: str, values: Sequence[str], start: int) -> None:
    if "" in values:
        raise InputError(f"row {start + values.index('')} of {file} has no {column}")


def _zeros_and_ones(file: Path, column: str, values: Sequence[str], start: int) -> np.ndarray:
    """(n,) uint8."""
    try:
        return np.fromiter(map(_ZERO_OR_ONE.__getitem__, values), dtype=np.uint8, count=len(values))
    except KeyError as error:
        row = start + values.index(error.args[0])
        raise InputError(
            f"row {row} of {file} has {error.args[0]!r} for class {column!r}; expected 0 or 1 (or name the column of "
            "class names 'label')"
        ) from None


def _split_numbers(file: Path, words: _Codes) -> np.ndarray:
    """(codes,) number of the split that each word means."""
    for word in words.names:
        if word.lower() not in _SPLITS:
            raise InputError(
                f"{file} has split {word!r}{did_you_mean(word.lower(), _SPLITS)} Known: {', '.join(_SPLITS)}"
            )
    order = list(SPLIT_FOLDERS)
    return np.array([order.index(_SPLITS[word.lower()]) for word in words.names], dtype=np.int8)


def _refuse_straddling(file: Path, split: np.ndarray, group: np.ndarray, names: Sequence[str]) -> None:
    pairs = np.unique(np.stack([group, split]), axis=1)
    twice = np.flatnonzero(np.diff(pairs[0]) == 0)
    if len(twice):
        name = names[pairs[0, twice[0]]]
        both = [list(SPLIT_FOLDERS)[i] for i in pairs[1, twice[0] : twice[0] + 2]]
        raise InputError(
            f"{file}: group {name!r} is in {' and '.join(both)}, one of {len(set(pairs[0, twice]))} groups in several "
            "splits; give each group one split, or leave out the column group"
        )
