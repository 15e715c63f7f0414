"""What is in the images and their labels: files, sizes, classes, duplicates, and whether a label tells of its image."""

import hashlib
import os
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from torchvision.transforms.v2 import functional as F

from template.checks.page import Line
from template.data.dataset import Images
from template.data.index import Index
from template.data.reading import Picture
from template.errors import InputError

SIDE = 16  # of the thumbnails, in pixels
_NEAR = (
    1.5  # root mean square difference, in 255ths, below which two thumbnails are one image: JPEG at 90 gives 0.3 to 1
)


@dataclass
class Seen:
    """What was read of one split: M of its N images, in a random order.

    Attributes:
        rows: (M,) rows of the index.
        digests: (M,) hashes of the decoded pixels.
        sizes: (M, 2) heights and widths, in pixels.
        thumbnails: (M, 3 * SIDE * SIDE) float32, 0 to 255.
        unreadable: (row, reason) of the files that could not be read.
    """

    rows: np.ndarray
    digests: list[bytes]
    sizes: np.ndarray
    thumbnails: np.ndarray
    unreadable: list[tuple[int, str]]


def look(index: Index, seconds: float, most: int | None = None) -> Seen:
    """Read the images of a split, as many as the time allows, on all cores."""
    images = Images(index, Picture.pixels)
    order = np.random.default_rng(0).permutation(len(index))[:most].tolist()
    end = time.monotonic() + seconds
    rows: list[int] = []
    found: list[tuple[bytes, tuple[int, int], np.ndarray]] = []
    unreadable: list[tuple[int, str]] = []

    def read(row: int) -> tuple[int, tuple[bytes, tuple[int, int], np.ndarray] | str]:
        try:
            image = images.picture(row).pixels()
        except InputError as error:
            return row, str(error)
        height, width = image.shape[-2:]
        digest = hashlib.blake2b(
            image.contiguous().numpy().tobytes(), digest_size=16, person=b"%dx%d" % (height, width)
        )
        small = F.resize(image, [SIDE, SIDE], antialias=True).float().flatten().numpy()
        return row, (digest.digest(), (height, width), small)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        remaining = iter(order)
        while time.monotonic() < end and (some := list(islice(remaining, 256))):
            for row, result in pool.map(read, some):
                if isinstance(result, str):
                    unreadable.append((row, result))
                else:
                    rows.append(row)
                    found.append(result)
    sizes = np.array([size for _, size, _ in found], dtype=np.int64).reshape(-1, 2)
    thumbnails = np.array([small for *_, small in found], dtype=np.float32).reshape(-1, 3 * SIDE * SIDE)
    return Seen(np.array(rows, dtype=np.int64), [digest for digest, *_ in found], sizes, thumbnails, unreadable)


def files(splits: Mapping[str, Index], seen: Mapping[str, Seen]) -> Iterator[Line]:
    """Unreadable files, and what the index left out."""
    total = sum(len(index) for index in splits.values())
    read = sum(len(s.rows) + len(s.unreadable) for s in seen.values())
    bad = [reason for s in seen.values() for _, reason in s.unreadable]
    share = f"{read} of {total} read" if read < total else f"all {total} read"
    if bad:
        shown = "; ".join(reason.removeprefix("cannot read ") for reason in bad[:3])
        yield Line("FAIL", "files", f"{share}; {len(bad)} unreadable: {shown}", "mend or remove them")
    else:
        yield Line("PASS", "files", share)
    for note in dict.fromkeys(note for index in splits.values() for note in index.notes):
        yield Line("WARN", "files", note, "look whether that is meant")


def sizes(seen: Mapping[str, Seen], network_size: int) -> Iterator[Line]:
    """Heights and widths against what the network sees."""
    every = np.concatenate([s.sizes for s in seen.values()])
    if not len(every):
        return
    low, high = every.min(axis=0), every.max(axis=0)
    found = f"{low[1]}x{low[0]} to {high[1]}x{high[0]} pixels (width x height), network {network_size}x{network_size}"
    shorter = every.min(axis=1)
    if np.median(shorter) * 4 < network_size:
        yield Line(
            "WARN", "sizes", found, "most are enlarged more than four times; a smaller preprocessing.size is as good"
        )
    elif np.median(shorter) > 6 * network_size:
        yield Line("WARN", "sizes", found, "reading them costs most of the time; store them smaller")
    elif (every.max(axis=1) > 4 * shorter).any():
        n = int((every.max(axis=1) > 4 * shorter).sum())
        yield Line(
            "WARN", "sizes", found, f"{n} are more than four times as long as wide: the centre crop drops most of them"
        )
    else:
        yield Line("PASS", "sizes", found)


def classes(splits: Mapping[str, Index], weighted: bool) -> Iterator[Line]:
    """Samples per class in each split.

    Args:
        splits: The index of each split.
        weighted: Whether the criterion has class weights.
    """
    train = splits["train"]
    counts = train.counts()
    least, most = int(counts.argmin()), int(counts.argmax())
    found = (
        f"{len(counts)} classes; train has {counts[least]} ({train.class_names[least]}) to {counts[most]} "
        f"({train.class_names[most]}) of each"
    )
    if counts[least] == 0:
        yield Line("FAIL", "classes", found, "a class without a training sample cannot be learned; remove it")
    elif counts[most] > 10 * counts[least] and not weighted:
        advice = "set model.class_weights, and monitor val/macro_f1: accuracy hides the rare classes"
        yield Line("WARN", "classes", found, advice)
    elif counts[least] < 5:
        yield Line("WARN", "classes", found, "fewer than 5 samples of a class: its score will be luck")
    else:
        yield Line("PASS", "classes", found)
    for split, index in splits.items():
        absent = [name for name, count in zip(index.class_names, index.counts(), strict=True) if not count]
        if absent and split != "train":
            text = f"{split} has no sample of {', '.join(absent[:5])}"
            yield Line("WARN", "classes", text, f"its {split} score says nothing of them")


def duplicates(splits: Mapping[str, Index], seen: Mapping[str, Seen]) -> Iterator[Line]:
    """The same pixels in two splits, or under two labels."""
    first: dict[bytes, tuple[str, int]] = {}
    across: list[str] = []
    conflicts: list[str] = []
    within = 0
    for split, s in seen.items():
        index = splits[split]
        for row, digest in zip(s.rows.tolist(), s.digests, strict=True):
            if digest not in first:
                first[digest] = split, row
                continue
            other_split, other_row = first[digest]
            other = splits[other_split]
            pair = f"{other.paths[other_row]} = {index.paths[row]}"
            if other_split != split:
                across.append(pair)
            else:
                within += 1
            if not np.array_equal(other.targets[other_row], index.targets[row]):
                conflicts.append(pair)
    total = sum(len(s.rows) for s in seen.values())
    if across:
        found = f"{len(across)} images are in two splits: {'; '.join(across[:3])}"
        yield Line("FAIL", "leaks", found, "take them out of one: the score would count what was learned by heart")
    else:
        yield Line("PASS", "leaks", f"no image of {total} is in two splits")
    if conflicts:
        found = f"{len(conflicts)} identical images have different labels: {'; '.join(conflicts[:3])}"
        yield Line("FAIL" if len(conflicts) > 0.01 * total else "WARN", "conflicts", found, "correct the labels")
    if within > 0.01 * total:
        yield Line("WARN", "repeats", f"{within} images repeat another of their split", "they count more than once")


def near_duplicates(splits: Mapping[str, Index], seen: Mapping[str, Seen], most: int = 2000) -> Iterator[Line]:
    """Images of val and test that are a training image but for its compression: equal thumbnails, unequal pixels."""
    train = seen["train"]
    pairs: list[str] = []
    for split in ("val", "test"):
        if split not in seen or not len(seen[split].rows) or not len(train.rows):
            continue
        other = seen[split]
        known = set(train.digests)
        distance, nearest = _nearest(other.thumbnails[:most], train.thumbnails)
        contrast = other.thumbnails[:most].std(axis=1)
        for i in np.flatnonzero((distance < _NEAR) & (contrast > 8)).tolist():
            if other.digests[i] not in known:
                row, train_row = int(other.rows[i]), int(train.rows[nearest[i]])
                pairs.append(f"{splits['train'].paths[train_row]} ~ {splits[split].paths[row]}")
    if pairs:
        found = f"{len(pairs)} images nearly equal a training image: {'; '.join(pairs[:3])}"
        yield Line("WARN", "near leaks", found, "look at them: copies, or frames of one video?")
    else:
        yield Line("PASS", "near leaks", "no image of val or test nearly equals a training image")


def labels_tell(splits: Mapping[str, Index], seen: Mapping[str, Seen], most: int = 2000) -> Iterator[Line]:
    """Whether the nearest training thumbnail has the label of a validation image more often than by chance.

    Chance is measured: the same neighbours with the training labels shuffled, 50 times.
    """
    train, val = seen["train"], seen["val"]
    if len(train.rows) < 20 or len(val.rows) < 20:
        return
    _, nearest = _nearest(val.thumbnails[:most], train.thumbnails)
    own = splits["val"].targets[val.rows[:most]]
    theirs = splits["train"].targets[train.rows]
    agreement = _agreement(own, theirs[nearest])
    generator = np.random.default_rng(0)
    shuffled = [_agreement(own, generator.permutation(theirs)[nearest]) for _ in range(50)]
    chance, spread = float(np.mean(shuffled)), float(np.std(shuffled)) + 1e-9
    found = f"the nearest training thumbnail agrees in {agreement:.0%}, {chance:.0%} by chance"
    if agreement > chance + 4 * spread:
        yield Line("PASS", "labels tell", found)
    else:
        advice = "are labels shuffled against images? Look at some; if the difference is in fine detail, all is well"
        yield Line("WARN", "labels tell", found, advice)


def _agreement(one: np.ndarray, other: np.ndarray) -> float:
    """Share of equal labels; for multi-label, of pairs of a sample and a class that both or neither has."""
    return float((one == other).mean())


def _nearest(queries: np.ndarray, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Root mean square distance to, and row of, the nearest point of each query."""
    q, p = torch.from_numpy(queries), torch.from_numpy(points)
    distances, rows = [], []
    for part in q.split(256):
        least, row = torch.cdist(part, p, compute_mode="use_mm_for_euclid_dist").min(dim=1)
        distances.append(least)
        rows.append(row)
    return (torch.cat(distances) / queries.shape[1] ** 0.5).numpy(), torch.cat(rows).numpy()
