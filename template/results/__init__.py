"""After a run: evaluate and predict, from a checkpoint and nothing else."""
