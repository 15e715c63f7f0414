"""Where a step reads a tensor's value on the host, which makes an accelerator wait: found on a CPU by interception."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

#: Methods of a tensor that hand its values, or a size that depends on them, to the host.
READS = (
    *("item", "tolist", "numpy", "cpu", "nonzero", "__array__"),
    *("__bool__", "__float__", "__int__", "__index__"),
)
_PACKAGES = Path(torch.__file__).parent.parent
_SKIPPED = tuple(f"{_PACKAGES / name}/" for name in ("torch", "torchmetrics", "torchvision"))
_OPTIMIZERS = f"{_PACKAGES / 'torch' / 'optim'}/"


@contextmanager
def host_reads() -> Iterator[Counter[str]]:
    """Count reads by ``method at file:line`` of the innermost line outside torch, torchmetrics and torchvision.

    Reads of torch's optimizers, whose step counters are on the CPU, and reads whose innermost such line is another
    installed library's are not a person's to mend and are left out.
    """
    found: Counter[str] = Counter()
    for name in READS:
        setattr(torch.Tensor, name, _counting(name, getattr(torch.Tensor, name), found))
    try:
        yield found
    finally:
        for name in READS:
            delattr(torch.Tensor, name)
            if name in _OWN:
                setattr(torch.Tensor, name, _OWN[name])


def _counting(name: str, read: Callable[..., Any], found: Counter[str]) -> Callable[..., Any]:
    def counted(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if (where := _caller()) is not None:
            found[f"{name.strip('_')} at {where}"] += 1
        return read(self, *args, **kwargs)

    return counted


def _caller() -> str | None:
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_SKIPPED):
        if frame.f_code.co_filename.startswith(_OPTIMIZERS):
            return None
        frame = frame.f_back
    file = frame.f_code.co_filename
    return None if file.startswith(f"{_PACKAGES}/") else f"{file}:{frame.f_lineno}"


_OWN = {name: vars(torch.Tensor)[name] for name in READS if name in vars(torch.Tensor)}
