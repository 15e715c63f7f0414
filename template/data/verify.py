"""What only reading every file can tell: which are damaged, and which are the same in two splits."""

import hashlib
import itertools
import json
import logging
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np

from template.data.index import Index
from template.data.reading import read_image
from template.data.scan import beside
from template.errors import InputError

log = logging.getLogger(__name__)


def damaged_files(index: Index) -> dict[int, str]:
    """Row and reason of every file that cannot be decoded to its end; decodes them all, on every core."""
    if index.pixels is not None:
        return {}

    def fault(row: int) -> str | None:
        try:
            read_image(index.root / index.paths[row])
        except InputError as error:
            return str(error)
        return None

    with ThreadPoolExecutor(os.cpu_count()) as pool:  # threads: decoders release the interpreter's lock
        faults = pool.map(fault, range(len(index)), chunksize=64)
        return {row: reason for row, reason in enumerate(faults) if reason is not None}


def duplicates_across(splits: Mapping[str, Index]) -> list[tuple[str, str]]:
    """Pairs of paths in different splits whose contents are byte for byte the same; reads files of equal size only."""
    by_size: dict[int, list[tuple[str, int]]] = defaultdict(list)
    for split, index in splits.items():
        for row in range(len(index)):
            by_size[_size(index, row)].append((split, row))
    pairs = []
    for rows in by_size.values():
        if len({split for split, _ in rows}) < 2:
            continue
        by_content: dict[bytes, list[tuple[str, int]]] = defaultdict(list)
        for split, row in rows:
            by_content[hashlib.sha256(_content(splits[split], row)).digest()].append((split, row))
        for same in by_content.values():
            for (split_a, a), (split_b, b) in itertools.combinations(same, 2):
                if split_a != split_b:
                    pairs.append((splits[split_a].paths[a], splits[split_b].paths[b]))
    return pairs


def leave_out_damaged(splits: Mapping[str, Index], limit: int) -> dict[str, Index]:
    """The splits without their damaged files, each with a note of what was left out.

    What was found is kept beside the data for as long as the index is the same, so that the number of samples is the
    same on every rank and after a resume, and files are looked at once.

    Raises:
        InputError: There are more damaged files than ``limit``.
    """
    found = _kept_or_found(splits)
    count = sum(map(len, found.values()))
    shown = "; ".join(itertools.islice(_told(found), 5)) + ("; …" if count > 5 else "")
    if count > limit:
        raise InputError(f"{count} damaged files, and data.max_damaged is {limit}: {shown}")
    left = {}
    for split, index in splits.items():
        rows = [int(row) for row in found[split]]
        left[split] = index
        if rows:
            note = f"{split}: {len(rows)} damaged files of {len(index)} are left out: {shown}"
            left[split] = replace(index.take(np.delete(np.arange(len(index)), rows)), notes=(*index.notes, note))
    return left


def _kept_or_found(splits: Mapping[str, Index]) -> dict[str, dict[str, str]]:
    """By split and row, the reason; from the file beside the data where it is of this index."""
    file = beside(next(iter(splits.values())).root, "damaged.json")
    fingerprints = {split: index.fingerprint for split, index in splits.items()}
    try:
        kept = json.loads(file.read_text(encoding="utf-8"))
        if kept["fingerprints"] == fingerprints:
            return kept["damaged"]
    except (OSError, ValueError, KeyError):
        pass
    log.info("data.max_damaged is set: reading every file once to find the damaged ones")
    found = {split: {str(row): why for row, why in damaged_files(index).items()} for split, index in splits.items()}
    partial = file.with_name(f"{file.name}.{os.getpid()}")
    try:
        partial.write_text(json.dumps({"fingerprints": fingerprints, "damaged": found}, indent=1), encoding="utf-8")
        os.replace(partial, file)
    except OSError:
        partial.unlink(missing_ok=True)
    return found


def _told(found: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    return (why.removeprefix("cannot read ").split("; mend")[0] for rows in found.values() for why in rows.values())


def _size(index: Index, row: int) -> int:
    if index.pixels is not None:
        return index.pixels[row].nbytes
    try:
        return (index.root / index.paths[row]).stat().st_size
    except OSError:
        return -1 - row  # missing: `damaged_files` names it


def _content(index: Index, row: int) -> bytes:
    return index.pixels[row].tobytes() if index.pixels is not None else (index.root / index.paths[row]).read_bytes()
