"""What `check` prints: a line a finding, PASS, WARN or FAIL, with the value found and what to do."""

import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Literal

from template.errors import InputError

Status = Literal["PASS", "WARN", "FAIL"]


@dataclass(frozen=True)
class Line:
    """One finding.

    Attributes:
        status: PASS; WARN, to be looked at; FAIL, the run would be wasted.
        name: What was looked at, in a word or two.
        found: The value.
        advice: What to do about it; empty for PASS.
    """

    status: Status
    name: str
    found: str
    advice: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.found}{f'; {self.advice}' if self.advice else ''}"


@dataclass
class Page:
    """The lines of a check, by group: data, learning, speed, settings."""

    groups: dict[str, list[Line]] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)

    def run(self, group: str, checks: Iterable[Callable[[], Iterable[Line]]]) -> None:
        """Run checks one after the other; one that raises is a FAIL of its own, and the others still run."""
        lines = self.groups.setdefault(group, [])
        for check in checks:
            try:
                lines.extend(check())
            except InputError as error:
                lines.append(Line("FAIL", _name(check), " ".join(str(error).split())))
            except Exception as error:  # whatever a person's own network or data set raises
                reason = next(iter(str(error).splitlines()), "")
                lines.append(Line("FAIL", _name(check), f"{type(error).__name__}: {reason}", "run fit with --debug"))

    def lines(self, *statuses: Status) -> Iterator[Line]:
        """The lines of the given statuses, or all."""
        for group in self.groups.values():
            yield from (line for line in group if not statuses or line.status in statuses)

    @property
    def failed(self) -> bool:
        return any(True for _ in self.lines("FAIL"))

    def text(self) -> str:
        """The page for a terminal, about 120 columns wide."""
        width = max((len(line.name) for line in self.lines()), default=0)
        rows = []
        for group, lines in self.groups.items():
            rows.append(f"{group}")
            for line in lines:
                rows.append(f"  {line.status}  {line.name:<{width}}  {line.found}")
                if line.advice:
                    rows.append(f"        {'':<{width}}  -> {line.advice}")
        counts = {status: sum(1 for _ in self.lines(status)) for status in ("PASS", "WARN", "FAIL")}
        total = ", ".join(f"{count} {status}" for status, count in counts.items())
        return "\n".join([*rows, f"{total} in {time.monotonic() - self.started:.0f} s"])

    def json(self) -> str:
        """The same as JSON: {group: [{status, name, found, advice}]}."""
        groups = {group: [asdict(line) for line in lines] for group, lines in self.groups.items()}
        return json.dumps(groups, indent=2, ensure_ascii=False) + "\n"


def _name(check: Callable[[], object]) -> str:
    function = getattr(check, "func", check)
    return str(getattr(function, "__name__", "check")).strip("_").replace("_", " ")
