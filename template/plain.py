"""Values become plain types, which YAML, JSON and ``torch.load(weights_only=True)`` all accept."""

import datetime
from collections.abc import Mapping
from enum import Enum
from pathlib import PurePath
from typing import Any

import numpy as np


def plain(value: Any, where: str = "settings") -> Any:
    """Convert to dict, list, str, int, float, bool and None, and refuse what has no such form.

    Args:
        value: Anything; paths become strings, enums their values, NumPy scalars and arrays numbers and lists, time
            spans seconds.
        where: Name of the value, for the error.

    Raises:
        TypeError: The value, or one inside it, has no plain form; the message names it.
    """
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, Enum):
        return plain(value.value, where)
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, np.generic | np.ndarray):
        return plain(value.tolist(), where)
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, Mapping):
        return {str(key): plain(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, str | int | float):  # a subclass of a plain type
        return next(kind(value) for kind in (str, int, float) if isinstance(value, kind))
    raise TypeError(f"{where} is a {type(value).__name__}, which cannot be stored in a checkpoint as a plain value")
