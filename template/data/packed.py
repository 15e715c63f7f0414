"""A million paths in two arrays: no Python object a path, so that workers share them and memory stays flat."""

import contextlib
import ctypes
import os
from collections.abc import Iterable, Sequence
from itertools import islice

import numpy as np

_CHUNK = 1 << 16  # strings packed at a time, so that there are never many as Python objects


class PackedStrings(Sequence[str]):
    """Strings in one byte array and their ends: 8 bytes each beside the text, nothing for the collector to walk.

    Args:
        strings: Strings without zero bytes, which no path has.
    """

    def __init__(self, strings: Iterable[str] = ()) -> None:
        self.bytes = np.empty(0, dtype=np.uint8)
        self.ends = np.empty(0, dtype=np.int64)
        self.extend(strings)

    @classmethod
    def from_arrays(cls, text: np.ndarray, ends: np.ndarray) -> "PackedStrings":
        """Of all their bytes, uint8, and the end of each, int64."""
        packed = cls()
        packed.bytes, packed.ends = text, ends
        return packed

    def extend(self, strings: Iterable[str]) -> None:
        """Add strings at the end; nothing may hold the two arrays meanwhile."""
        if isinstance(strings, PackedStrings):
            grow(self.ends, strings.ends + len(self.bytes))
            grow(self.bytes, strings.bytes)
            return
        strings = iter(strings)
        while chunk := list(islice(strings, _CHUNK)):
            encoded = os.fsencode("\0".join(chunk) + "\0")
            zeros = np.flatnonzero(np.frombuffer(encoded, dtype=np.uint8) == 0)
            grow(self.ends, zeros - np.arange(len(zeros)) + len(self.bytes))
            grow(self.bytes, np.frombuffer(encoded.replace(b"\0", b""), dtype=np.uint8))

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, i):  # type: ignore[no-untyped-def]
        if isinstance(i, slice):
            return [self[j] for j in range(*i.indices(len(self)))]
        i = range(len(self))[i]
        start = self.ends[i - 1] if i else 0
        return os.fsdecode(self.bytes[start : self.ends[i]].tobytes())

    def take(self, rows: np.ndarray) -> "PackedStrings":
        """The strings of the given rows, in the given order."""
        starts = np.concatenate([[0], self.ends[:-1]])[rows] if len(rows) else np.zeros(0, dtype=np.int64)
        lengths = self.ends[rows] - starts
        ends = np.cumsum(lengths)
        text = np.empty(int(lengths.sum()), dtype=np.uint8)
        for at in range(0, len(rows), _CHUNK):  # a part at a time: the byte positions take 8 times the text
            part = slice(at, at + _CHUNK)
            first = ends[at] - lengths[at]
            moved = starts[part] - (ends[part] - lengths[part])
            positions = np.repeat(moved, lengths[part]) + np.arange(first, ends[part][-1])
            text[first : ends[part][-1]] = self.bytes[positions]
        return self.from_arrays(text, ends)


def grow(array: np.ndarray, rows: np.ndarray) -> None:
    """Append to an array in place: parts kept for a final concatenation would leave their memory with the process."""
    n = len(array)
    array.resize((n + len(rows), *array.shape[1:]), refcheck=False)
    array[n:] = rows


def release_free_memory() -> None:
    """Hand freed memory back to the system: at a million rows glibc kept as much again as the index takes."""
    with contextlib.suppress(AttributeError, OSError, TypeError):  # other C libraries have no such call
        ctypes.CDLL(None).malloc_trim(0)
