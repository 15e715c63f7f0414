"""Two processes resume like one, and with one: pytest tests/test_resume_processes.py"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from training import NoBatchStatistics, train, write_images

from template.model.module import Classifier


def difference(one: dict[str, Any], other: dict[str, Any]) -> float:
    return max(float((tensor - other[name]).abs().max()) for name, tensor in one.items())


def test_a_run_of_two_processes_resumes_to_the_same_bits_and_in_one_process_to_the_same_weights(tmp_path):
    images = write_images(tmp_path / "images", {"train": 29, "val": 7, "test": 4})
    here = Path(__file__).parent
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    result = subprocess.run(
        [*launcher, str(here / "two_processes.py"), str(images), str(tmp_path)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{here.parent}{os.pathsep}{here}"},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout.count("resumed from") == 2 * 3

    options: dict[str, Any] = {"callbacks": (NoBatchStatistics(),), "dropout": 0.0}
    module, _, recorder = train(images, tmp_path / "one", **options)
    final = torch.load(tmp_path / "whole" / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    assert difference(final, module.state_dict()) < 2e-5
    keys = [torch.load(tmp_path / f"keys{rank}.pt", weights_only=True) for rank in (0, 1)]
    assert {n: keys[0][n] + keys[1][n] for n in keys[0]} == recorder.keys

    resumed: Classifier = train(images, tmp_path / "in one", tmp_path / "kept" / "0006_plain.ckpt", **options)[0]
    assert difference(final, resumed.state_dict()) < 2e-5
