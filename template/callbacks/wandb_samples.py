"""The same few validation images at Weights & Biases, with what the network says of them as it learns."""

import lightning.pytorch as L
import torch
from lightning.pytorch.loggers import WandbLogger

from template.data.dataset import Images
from template.model.module import Classifier

#: Images that are shown, and about how often in a run: a few hundred small pictures at most.
SAMPLES, TIMES = 16, 20


class WandbSamples(L.Callback):
    """Logs fixed validation images, evenly spaced over the split; nothing without Weights & Biases."""

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        logger = next((logger for logger in trainer.loggers if isinstance(logger, WandbLogger)), None)
        every = max(1, (trainer.max_epochs or 1) // TIMES)
        fitting = trainer.state.fn == "fit" and not trainer.sanity_checking
        if logger is None or not fitting or not trainer.is_global_zero or trainer.current_epoch % every:
            return
        assert isinstance(pl_module, Classifier)
        index = trainer.datamodule.splits["val"]  # type: ignore[attr-defined]
        rows = torch.linspace(0, len(index) - 1, min(SAMPLES, len(index))).round().long().tolist()
        samples = Images(index, pl_module.preprocessing.sample)
        images = torch.stack([samples[0, row][0] for row in rows])
        with torch.no_grad():  # validation is over, and the module still in eval mode
            logits = pl_module(pl_module.preprocessing.normalise(images.to(pl_module.device)))
            probabilities, classes = pl_module.probabilities(logits).max(1)
        names = pl_module.class_names
        captions = [
            f"{_name(names, index.targets[row])} → {names[k]} {p:.0%}"
            for row, k, p in zip(rows, classes.tolist(), probabilities.tolist(), strict=True)
        ]
        pictures = [image.permute(1, 2, 0).numpy() for image in images]
        logger.log_image("val/samples", pictures, trainer.global_step, caption=captions)


def _name(names: tuple[str, ...], target: object) -> str:
    import numpy as np

    labels = np.asarray(target)
    if labels.ndim == 0:
        return names[int(labels)]
    return " + ".join(name for name, is_one in zip(names, labels, strict=True) if is_one) or "none"
