"""Early stopping that a resume does not forget."""

import lightning.pytorch as L
from lightning.pytorch.callbacks import EarlyStopping


class EarlyStop(EarlyStopping):
    """Lightning's EarlyStopping, which resumed after the validation that stopped the run would train on."""

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self.wait_count >= self.patience:
            trainer.should_stop = True
