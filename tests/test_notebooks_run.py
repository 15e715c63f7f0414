"""The notebooks of a run and of predictions run from top to bottom on a real run, and carry no output."""

import ast
import json
from pathlib import Path
from typing import Any

import pytest
from finished_run import run

from template.results.figures import Picture

__all__ = ["run"]
NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
OURS = ("look_at_a_run.ipynb", "look_at_predictions.ipynb")


def code_cells(name: str) -> list[dict[str, Any]]:
    cells = json.loads((NOTEBOOKS / name).read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def execute(name: str) -> list[Any]:
    """Run the code cells as Jupyter would, in one namespace; what each shows: the value of a last expression."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    shown = []
    for number, cell in enumerate(code_cells(name)):
        tree = ast.parse("".join(cell["source"]))
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        where = f"{name}, code cell {number}"
        exec(compile(tree, where, "exec"), namespace)
        if isinstance(last, ast.Expr):
            shown.append(eval(compile(ast.Expression(last.value), where, "eval"), namespace))
    return shown


@pytest.fixture
def beside_runs(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the run where the notebooks look for the newest."""
    (tmp_path / "runs" / "x").mkdir(parents=True)
    (tmp_path / "runs" / "x" / "now").symlink_to(run)
    (tmp_path / "notebooks").mkdir()
    monkeypatch.chdir(tmp_path / "notebooks")  # where Jupyter starts a notebook
    return tmp_path


def test_the_notebook_of_a_run_shows_curves_confusion_calibration_and_mistakes(beside_runs: Path) -> None:
    shown = execute("look_at_a_run.ipynb")
    assert sum(isinstance(value, Picture) for value in shown) == 4
    assert shown[0] == beside_runs / "runs" / "x" / "now"
    assert all(value._repr_png_().startswith(b"\x89PNG") for value in shown if isinstance(value, Picture))


def test_the_notebook_of_predictions_shows_images_and_certainty(
    beside_runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = execute("look_at_predictions.ipynb")
    assert sum(isinstance(value, Picture) for value in shown) == 2
    printed = capsys.readouterr().out
    assert "20 images; 3 classes: 10, 2, 猫 1" in printed
    assert "'class_3': " in printed


@pytest.mark.parametrize("name", OURS)
def test_no_output_is_committed(name: str) -> None:
    assert [cell["outputs"] for cell in code_cells(name)] == [[]] * len(code_cells(name))
    assert {cell["execution_count"] for cell in code_cells(name)} == {None}
