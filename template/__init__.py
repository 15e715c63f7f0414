"""A PyTorch Lightning project template for training vision models."""

__version__ = "0.1.0"
