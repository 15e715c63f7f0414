"""What a run folder says: its settings, its final values and its curves."""

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from template.errors import InputError

#: Values of one column of metrics.csv: (M,) steps and (M,) values.
Curve = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Run:
    """What a run folder says.

    Attributes:
        folder: The folder.
        config: config.yaml.
        final: metrics.json; empty while the run is not finished.
        curves: The columns of metrics.csv by name: steps and values.
    """

    folder: Path
    config: dict[str, Any]
    final: dict[str, Any]
    curves: dict[str, Curve]

    @property
    def name(self) -> str:
        """The last two parts of the folder's path: of a default one the config's name and the time."""
        return "/".join(self.folder.resolve().parts[-2:])

    @property
    def monitor(self) -> str:
        return str(self.config["checkpoints"]["monitor"])

    @property
    def score(self) -> str:
        """The metric that is drawn beside the loss: the monitored one, or the accuracy where that is the loss."""
        return "val/accuracy" if self.monitor == "val/loss" else self.monitor


def read_run(folder: Path) -> Run:
    """Read what a run folder says of itself.

    Raises:
        InputError: It has no config.yaml or metrics.csv.
    """
    for name in ("config.yaml", "metrics.csv"):
        if not (folder / name).is_file():
            raise InputError(f"{folder} is no run folder: it has no {name}")
    config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    final_file = folder / "metrics.json"
    final = json.loads(final_file.read_text(encoding="utf-8")) if final_file.is_file() else {}
    return Run(folder, config, final, read_curves(folder / "metrics.csv"))


def read_curves(path: Path) -> dict[str, Curve]:
    """The columns of a metrics.csv by name: (M,) steps and (M,) values where there are some."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    columns = [name for name in (rows[0] if rows else {}) if name not in ("step", "epoch")]
    found = {name: [(int(row["step"]), float(row[name])) for row in rows if row[name]] for name in columns}
    return {name: (np.array([p[0] for p in pairs]), np.array([p[1] for p in pairs])) for name, pairs in found.items()}


def flatten(config: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """``{"model.width": 32, …}`` of a nested config."""
    flat: dict[str, Any] = {}
    for key, value in config.items():
        name = f"{above}{key}"
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{name}.")
        else:
            flat[name] = value
    return flat
