"""The pure functions behind every random choice: nothing here has state, so nothing has to be saved.

The order of an epoch depends on (seed, epoch); every per-sample draw on (seed, epoch, index); dropout on
(seed, epoch, batch, rank). A run killed anywhere and resumed therefore makes the choices it would have made.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15  # increment and multipliers of splitmix64: Steele, Lea, Flood, OOPSLA 2014
_MIX1 = 0xBF58476D1CE4E5B9
_MIX2 = 0x94D049BB133111EB


def mix(*values: int) -> int:
    """Hash integers into one of 64 bits with splitmix64, order mattering: ``mix(1, 2) != mix(2, 1)``."""
    state = 0
    for value in values:
        state = (state ^ (value & _MASK)) + _GAMMA & _MASK
        state = (state ^ state >> 30) * _MIX1 & _MASK
        state = (state ^ state >> 27) * _MIX2 & _MASK
        state ^= state >> 31
    return state


def epoch_order(n: int, seed: int, epoch: int) -> np.ndarray:
    """Permutation of ``range(n)``, (n,) int64, that depends on (seed, epoch) alone."""
    generator = torch.Generator().manual_seed(mix(seed, epoch) >> 1)
    return torch.randperm(n, generator=generator).numpy()


def balanced_order(targets: np.ndarray, balance: float, seed: int, epoch: int) -> np.ndarray:
    """Indices drawn with replacement, (n,) int64, in which a rare class is more frequent than it is in the data.

    Args:
        targets: (n,) class of each sample.
        balance: A class with a share s of the samples is drawn in proportion to s ** (1 - balance): 0 is as it is, 1
            every class as often, 0.5 in between.
        seed: The run's seed.
        epoch: The epoch; with the seed all that the draws depend on.
    """
    counts = np.bincount(targets)
    weights = np.cumsum(counts[targets].astype(np.float64) ** -balance)
    generator = torch.Generator().manual_seed(mix(seed, epoch, 1) >> 1)
    draws = torch.rand(len(targets), generator=generator, dtype=torch.float64).numpy()
    return np.minimum(np.searchsorted(weights, draws * weights[-1], side="right"), len(targets) - 1)


def seed_libraries(value: int) -> None:
    """Seed Python, NumPy and torch on the current devices from one 64-bit value, in about 8 microseconds.

    ``torch.manual_seed`` would take 120 to 160: it visits every back end whether it is used or not.
    """
    random.seed(value)
    np.random.seed(value & 0xFFFFFFFF)
    torch.default_generator.manual_seed(value >> 1)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(value >> 1)


def seed_sample(seed: int, epoch: int, index: int) -> None:
    """Seed Python, NumPy and torch for one sample, so that its draws depend on (seed, epoch, index) alone."""
    seed_libraries(mix(seed, epoch, index))


def random_states() -> tuple[object, ...]:
    """The CPU random states of Python, NumPy and torch: two of them are equal if nothing was drawn in between."""
    numpy_state: Any = np.random.get_state()
    words, *rest = numpy_state[1:]
    return random.getstate(), words.tobytes(), rest, torch.default_generator.get_state().numpy().tobytes()


@contextmanager
def preserved() -> Iterator[None]:
    """Leave the CPU random state of Python, NumPy and torch as it was found."""
    states = random.getstate(), np.random.get_state(), torch.default_generator.get_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.default_generator.set_state(states[2])


def keyed_uniforms(seed: int, keys: Tensor, draws: int, stream: int = 0) -> Tensor:
    """Uniforms in [0, 1) for a batch, on the keys' device and without synchronising with it.

    Args:
        seed: The run's seed.
        keys: (B, 2) int64, the (epoch, index) of each sample.
        draws: How many numbers each sample gets.
        stream: Separates independent uses of the same keys.

    Returns:
        (B, draws) float32; row b is a function of (seed, stream, keys[b]) alone, whatever the batch around it.
    """
    start = _signed(mix(seed, stream))
    state = _splitmix(_splitmix(keys[:, 0] ^ start) ^ keys[:, 1])
    lanes = torch.arange(1, draws + 1, device=keys.device) * _signed(_GAMMA)
    bits = _finalise(state[:, None] + lanes)
    return ((bits >> 40) & 0xFFFFFF).to(torch.float32) * 2.0**-24


def _splitmix(state: Tensor) -> Tensor:
    return _finalise(state + _signed(_GAMMA))


def _finalise(state: Tensor) -> Tensor:
    state = (state ^ _shift(state, 30)) * _signed(_MIX1)
    state = (state ^ _shift(state, 27)) * _signed(_MIX2)
    return state ^ _shift(state, 31)


def _shift(value: Tensor, bits: int) -> Tensor:
    """Logical right shift; torch's own is arithmetic on int64."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value
