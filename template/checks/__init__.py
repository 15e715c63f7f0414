"""Before a run: what can be found wrong without training."""
