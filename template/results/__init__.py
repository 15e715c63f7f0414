"""After a run: evaluate, report, predict and export, from a checkpoint or a run folder and nothing else."""
