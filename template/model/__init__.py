"""Batches to losses and metrics: network, criterion, metrics, module, in that order."""
