"""The notebook that looks at the data runs from its first cell to its last, and is kept without outputs."""

import json
import shutil
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from pictures import class_folders
from PIL import Image

NOTEBOOK = Path(__file__).parents[1] / "notebooks" / "look_at_the_data.ipynb"


def cells() -> list[dict[str, Any]]:
    return [cell for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]


def test_the_notebook_shows_samples_and_names_the_problems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "photos"
    class_folders(root / "train", ["a", "b"], each=5)
    class_folders(root / "val", ["a", "b"], each=1)
    shutil.copy(root / "train" / "a" / "3.png", root / "val" / "a" / "copy.png")
    (root / "train" / "b" / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    monkeypatch.setenv("DATA_ROOT", str(root))
    monkeypatch.setenv("DATA_SOURCE", "folder")
    matplotlib.use("Agg")
    namespace: dict[str, Any] = {}
    shown: list[np.ndarray] = []
    monkeypatch.setattr("matplotlib.pyplot.show", lambda: shown.append(np.asarray(_drawn())))
    for number, cell in enumerate(cells()):
        exec(compile("".join(cell["source"]), f"cell {number}", "exec"), namespace)
    printed = capsys.readouterr().out
    assert "train: 1 damaged files" in printed
    assert "broken.png" in printed
    assert "= val/a/" in printed
    assert len(shown) == 2
    assert all(picture.std() > 5 for picture in shown)
    before, after = namespace["shown"][0], namespace["shown"][1]
    assert before.shape == after.shape
    assert not np.array_equal(before, after)


def _drawn() -> Image.Image:
    import io

    from matplotlib import pyplot

    file = io.BytesIO()
    pyplot.gcf().savefig(file, format="png")
    pyplot.close("all")
    return Image.open(file).convert("RGB")


def test_the_notebook_is_kept_without_outputs() -> None:
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells())
