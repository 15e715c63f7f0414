"""Run by test_resume_processes.py under torchrun: a whole run of two processes, and resumes of it, compared."""

import sys
from pathlib import Path

import torch
from training import NoBatchStatistics, assert_same_state, train

if __name__ == "__main__":
    images, folder = Path(sys.argv[1]), Path(sys.argv[2])
    options = {"callbacks": (NoBatchStatistics(),), "dropout": 0.0, "devices": 2, "strategy": "ddp", "every_steps": 1}
    whole = train(images, folder / "whole", keep=folder / "kept", **options)  # type: ignore[arg-type]
    rank = whole[1].global_rank
    torch.save(whole[2].keys, folder / f"keys{rank}.pt")
    for path in sorted((folder / "kept").iterdir())[1::4]:
        resumed = train(images, folder / path.stem, path, **options)  # type: ignore[arg-type]
        assert_same_state(resumed[:2], whole[:2])
        assert resumed[2].keys == {n: keys for n, keys in whole[2].keys.items() if n >= int(path.name[:4])}
        print(f"rank {rank} resumed from {path.stem}", flush=True)
