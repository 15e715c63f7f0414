"""A signal to the whole process group, with loader workers and two ranks: pytest tests/test_signals_processes.py"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from test_resume_folder import assert_equal, config  # noqa: F401  a fixture


def start(arguments: list[str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "template", "fit", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, start_new_session=True, env=environment, **pipes)  # type: ignore[call-overload]


def wait_for_step(process: subprocess.Popen[str], log: Path, step: int) -> None:
    """Return once the run has logged a step; the run's own log is the clock."""
    while process.poll() is None:
        if log.exists() and f" step {step}/" in log.read_text():
            return
        time.sleep(0.02)
    raise AssertionError(process.communicate()[0])


def finished(process: subprocess.Popen[str]) -> tuple[int, str]:
    output, _ = process.communicate(timeout=120)
    return process.returncode, output


@pytest.mark.parametrize(
    ("number", "status", "options"),
    [
        (signal.SIGTERM, 143, ["--data.num_workers", "2"]),
        pytest.param(signal.SIGINT, 130, ["--trainer.devices", "2"], marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, 143, ["--trainer.devices", "2"], marks=pytest.mark.slow),
    ],
    ids=["workers", "two ranks, Ctrl-C", "two ranks"],
)
def test_a_signal_to_the_group_exits_with_its_status_and_resumes_to_the_same_bits(
    request: pytest.FixtureRequest, tmp_path: Path, number: int, status: int, options: list[str]
) -> None:
    job = request.getfixturevalue("config")
    settings = yaml.safe_load(job.read_text())
    settings["trainer"]["max_epochs"] = 40
    settings["report"] = False
    (tmp_path / "long.yaml").write_text(yaml.safe_dump(settings))
    arguments = ["--config", str(tmp_path / "long.yaml"), *options]

    code, output = finished(start([*arguments, "--run_dir", str(tmp_path / "whole")]))
    assert code == 0, output
    process = start([*arguments, "--run_dir", str(tmp_path / "cut")])
    wait_for_step(process, tmp_path / "cut" / "train.log", 20)
    os.killpg(process.pid, number)
    code, output = finished(process)
    assert code == status, output
    assert f"stopped by {signal.Signals(number).name}: " in output
    code, output = finished(start(["--resume", str(tmp_path / "cut")]))
    assert code == 0, output
    assert_equal(tmp_path / "cut", tmp_path / "whole")
