"""`make train` and `make test` set everything up themselves, once. Stubs stand for Python, pip and uv."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
STUB = """#!/bin/sh
echo "$(basename "$0") $*" >> "$CALLS"
case "$*" in *"-m venv .venv"*|"venv"*)
    mkdir -p .venv/bin
    for tool in python pip ruff mypy; do cp "$0" .venv/bin/$tool; done
esac
case "$*" in *install*) exit ${INSTALL_STATUS:-0}; esac
"""


class Clone:
    """A folder with the real Makefile and pyproject.toml, and stubs that only note how they are called."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.calls = folder / "calls"
        for name in ("Makefile", "pyproject.toml"):
            shutil.copy(ROOT / name, folder / name)
        (folder / "stubs").mkdir()
        for name in ("python3", "uv"):
            (folder / "stubs" / name).write_text(STUB)
            (folder / "stubs" / name).chmod(0o755)

    def make(self, *arguments: str, status: int = 0, **environment: str) -> tuple[list[str], str]:
        """The stubs' calls, and what was printed."""
        self.calls.write_text("")
        path = f"{self.folder / 'stubs'}:{os.environ['PATH']}"
        clean = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
        done = subprocess.run(
            ["make", *arguments],
            cwd=self.folder,
            env={**clean, "PATH": path, "CALLS": str(self.calls), **environment},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode != 0) == (status != 0), done.stdout + done.stderr
        return self.calls.read_text().splitlines(), done.stdout


@pytest.fixture
def clone(tmp_path) -> Clone:
    return Clone(tmp_path)


@pytest.mark.parametrize(
    ("target", "work"),
    [("train", "python -m template fit --config configs/digits.yaml"), ("test", "python -m pytest -q")],
)
def test_on_a_fresh_clone_it_sets_up_says_so_and_does_its_work_and_then_only_its_work(clone, target, work):
    calls, out = clone.make(target)
    assert [call.strip() for call in calls] == ["python3 -m venv .venv", "pip install -q -e .[dev]", work]
    assert "Setting up .venv" in out
    calls, out = clone.make(target)
    assert [call.strip() for call in calls] == [work]
    assert "Setting up" not in out


def test_with_uv_it_sets_up_with_uv(clone):
    calls, _ = clone.make("setup", "UV=1")
    assert calls == ["uv venv --allow-existing .venv", "uv pip install --python .venv/bin/python -e .[dev]"]
    assert clone.make("setup", "UV=1")[0] == []


def test_a_set_up_that_failed_is_not_taken_for_done(clone):
    clone.make("train", status=2, INSTALL_STATUS="1")
    calls, _ = clone.make("train")
    assert "pip install -q -e .[dev]" in calls


def test_changed_dependencies_are_installed(clone):
    clone.make("setup")
    later = (clone.folder / ".venv/complete").stat().st_mtime + 10
    os.utime(clone.folder / "pyproject.toml", (later, later))
    assert "pip install -q -e .[dev]" in clone.make("setup")[0]


def test_config_run_and_arguments_pass_through(clone):
    clone.make("setup")
    calls, _ = clone.make("train", "CONFIG=configs/mine.yaml", "ARGS=--seed 1")
    assert calls == ["python -m template fit --config configs/mine.yaml --seed 1"]
    calls, _ = clone.make("evaluate", "RUN=runs/a", "ARGS=--split val")
    assert calls == ["python -m template evaluate runs/a --split val"]
    calls, _ = clone.make("predict", "RUN=runs/a", "ARGS=photos")
    assert calls == ["python -m template predict runs/a photos"]


def test_help_is_what_make_alone_does_and_lists_every_target(clone):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    _, out = clone.make()
    assert {line.split()[0] for line in out.splitlines()} == targets
    phony = re.search(r"^\.PHONY: (.*)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert phony is not None
    assert set(phony[1].split()) == targets


def test_the_checks_of_a_push_are_the_make_targets():
    workflow = (ROOT / ".github/workflows/ci.yml").read_text()
    for text in (workflow, (ROOT / ".ci/run").read_text()):
        assert "make lint" in text
        assert "make test" in text
