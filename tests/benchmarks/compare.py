"""Things measured in one run, alternating, and rows that print each ratio with its bound; one missed fails."""

import statistics
import sys
import time
from collections.abc import Callable, Mapping


def alternate(
    contestants: Mapping[str, Callable[[], float | None]],
    rounds: int = 7,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds of each contestant's rounds, taken in turn so that a slow moment of the machine falls on all.

    A contestant may return the seconds that it took itself; else the call is timed. For work in one thread of one
    process the clock may be ``time.process_time``, which other work on the machine disturbs less.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, run in contestants.items():
            start = clock()
            own = run()
            seconds[name].append(clock() - start if own is None else own)
    return seconds


def median_ratio(numerator: list[float], denominator: list[float]) -> float:
    """Median over the rounds of one contestant's seconds by another's of the same round."""
    return statistics.median(a / b for a, b in zip(numerator, denominator, strict=True))


class Rows:
    """Lines of a section: name, value, bound. ``finish`` ends the script with status 1 if a bound was missed."""

    def __init__(self, section: str) -> None:
        self.missed: list[str] = []
        print(f"\n{section}")

    def at_least(self, name: str, value: float, bound: float, unit: str = "", note: str = "") -> None:
        self._row(name, value, f">= {bound:,.4g}", value >= bound, unit, note)

    def at_most(self, name: str, value: float, bound: float, unit: str = "", note: str = "") -> None:
        self._row(name, value, f"<= {bound:,.4g}", value <= bound, unit, note)

    def plain(self, name: str, value: float, unit: str = "", note: str = "") -> None:
        """A line without a bound."""
        self._row(name, value, "", True, unit, note)

    def _row(self, name: str, value: float, bound: str, kept: bool, unit: str, note: str) -> None:
        shown = f"{value:,.2f}" if abs(value) < 1000 else f"{value:,.0f}"
        line = f"  {name:<62} {shown:>10} {unit:<14} {bound:<12}{'' if kept else ' MISSED'} {note}".rstrip()
        print(line, flush=True)
        if not kept:
            self.missed.append(name)

    def finish(self) -> None:
        sys.exit(1 if self.missed else 0)
