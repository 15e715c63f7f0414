"""Twenty runs killed at random moments and resumed end in the same bits: make test-slow ARGS=tests/test_torture.py"""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_resume_folder import assert_equal

RUNS = 20


def start(arguments: list[str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "template", "fit", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)


def finish(process: subprocess.Popen[bytes]) -> None:
    output, _ = process.communicate()
    assert process.returncode == 0, output.decode()


@pytest.mark.slow
def test_twenty_runs_killed_at_random_moments_end_in_the_same_bits(tmp_path: Path) -> None:
    seed = int(os.environ.get("TORTURE_SEED", time.time_ns() % 1_000_000))
    print(f"TORTURE_SEED={seed} repeats these moments")
    moments = random.Random(seed)
    job = ["--config", "configs/digits.yaml", "--trainer.max_epochs", "10", "--model.width", "8"]
    job += ["--wandb.mode", "disabled", "--checkpoints.every_steps", "7", "--trainer.val_check_interval", "10"]
    job += ["--data.root", str(tmp_path / "digits"), "--trainer.log_every_n_steps", "5"]
    whole = tmp_path / "whole"
    finish(start([*job, "--run_dir", str(whole)]))  # also writes the data, which is not what is tortured
    reference, length = tmp_path / "reference", time.monotonic()
    finish(start([*job, "--run_dir", str(reference)]))
    length = time.monotonic() - length
    assert_equal(reference, whole)

    kills = 0
    for run in range(RUNS):
        folder = tmp_path / f"run{run}"
        workers = ["--data.num_workers", str(run % 3 % 2 * 2)]
        process = start([*job, *workers, "--run_dir", str(folder)])
        for kill in range(moments.randint(1, 4)):
            # most of a process's time is imports: kill it in its second half, when it trains, saves and validates
            time.sleep(length * moments.uniform(0.4, 1.0))
            while kill == 0 and process.poll() is not None:  # faster than the reference was: anew, and killed earlier
                process.communicate()
                shutil.rmtree(folder)
                length *= 0.9
                process = start([*job, *workers, "--run_dir", str(folder)])
                time.sleep(length * moments.uniform(0.4, 1.0))
            killed = process.poll() is None
            if killed:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            kills += killed
            process = start(
                ["--resume", str(folder)] if folder.exists() else [*job, *workers, "--run_dir", str(folder)]
            )
        finish(process)
        assert_equal(folder, whole)
    assert kills >= RUNS
    print(f"{RUNS} of {RUNS} runs, killed {kills} times, ended in the bits of the run that was not")
