"""The first step that is not finite stops the run, is named, is never saved, and can be explained."""

import json
import math
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import pytest
import torch
from training import train, write_images

from template.callbacks.checkpoints import LAST
from template.callbacks.nonfinite import NonFinite
from template.callbacks.step_log import StepLog
from template.cli import main
from template.errors import InputError
from template.model.criterion import CrossEntropy

PLAIN: dict[str, Any] = {"num_sanity_val_steps": 0, "optimizer": "SGD", "log_every_n_steps": 1}


class Spoil(L.Callback):
    """Puts a value into the loss or a gradient at the given optimizer steps, numbered from 1."""

    def __init__(self, steps: tuple[int, ...], where: str, value: float = math.nan) -> None:
        self.steps, self.where, self.value = steps, where, value
        self.at = 0

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.at = trainer.global_step + 1
        if self.at in self.steps and self.where == "image":
            batch["image"][0] = self.value

    def on_after_backward(self, trainer, pl_module):
        if self.at in self.steps and self.where == "gradient":
            pl_module.network.head.bias.grad[0] = self.value

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if self.at in self.steps and self.where == "weights":
            with torch.no_grad():
                pl_module.network.head.bias[0] = self.value


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    return write_images(tmp_path_factory.mktemp("data"), {"train": 24, "val": 6, "test": 3})


def stopped(root: Path, folder: Path, *callbacks: L.Callback, guard: NonFinite | None = None, **options: Any) -> dict:
    with pytest.raises(InputError) as error:
        train(root, folder, callbacks=(guard or NonFinite(), *callbacks), **{**PLAIN, **options})
    (found,) = folder.glob("nonfinite_step*")
    step = json.loads((found / "step.json").read_text())
    assert f"see {found}, explained by: python -m template replay {found}" in str(error.value)
    assert found.name == f"nonfinite_step{step['step']}"
    return step


def test_the_optimizer_takes_no_further_step_than_the_one_in_which_the_flag_is_read(root, tmp_path):
    taken: list[int] = []

    class Steps(L.Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            taken.append(trainer.global_step)

    stopped(root, tmp_path, Spoil((2,), "gradient"), Steps())
    assert taken == [1, 2]  # the third is stopped before the optimizer


@pytest.mark.parametrize("where", ["image", "gradient"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_the_folder_tells_the_step_its_samples_and_the_numbers(root, tmp_path, where, value):
    step = stopped(root, tmp_path, Spoil((2,), where, value))
    assert (step["step"], step["epoch"], step["batches"]) == (2, 0, [1])
    assert step["learning_rate"] > 0
    assert len(step["keys"][0]) == len(step["paths"]) == 8
    assert all(path.startswith("train/class") for path in step["paths"])
    if where == "gradient":
        assert step["gradient_norm"] in ("nan", "inf")
        assert math.isfinite(step["losses"][0][0])
    else:
        assert step["losses"] == [["nan"]]
    batch = torch.load(tmp_path / "nonfinite_step2" / "batch.pt", weights_only=True)
    assert batch["image"].dtype == torch.uint8
    assert batch["key"].tolist() == step["keys"][0]


def test_every_piece_of_an_accumulation_window_is_named(root, tmp_path):
    step = stopped(root, tmp_path, Spoil((2,), "image"), max_batch=4)
    assert step["batches"] == [2, 3]
    assert len(step["keys"][0]) == 8
    assert len(step["losses"][0]) == 2


@pytest.mark.parametrize("at", [2, 3, 4])
def test_nothing_that_is_not_finite_is_saved_whatever_is_due(root, tmp_path, at):
    step = stopped(root, tmp_path, Spoil((at,), "gradient"), every_steps=1)  # step 3 ends an epoch of 3
    last = torch.load(tmp_path / "checkpoints" / LAST, weights_only=True)
    assert last["global_step"] == at - 1
    assert all(torch.isfinite(tensor).all() for tensor in last["state_dict"].values())
    assert step["last_good_checkpoint"] == str(tmp_path / "checkpoints" / LAST)
    kept = torch.load(tmp_path / f"nonfinite_step{at}" / "checkpoint.ckpt", weights_only=True)
    assert kept["global_step"] == at - 1


def test_weights_that_a_finite_step_made_infinite_are_not_saved_either(root, tmp_path):
    step = stopped(root, tmp_path, Spoil((2,), "weights", math.inf), every_steps=1)
    assert step["weights_not_finite"] == ["network.head.bias"]
    assert torch.load(tmp_path / "checkpoints" / LAST, weights_only=True)["global_step"] == 1


def test_weights_are_looked_at_after_each_step_where_that_is_asked_for(root, tmp_path):
    spoil = Spoil((2,), "weights", math.inf)
    with pytest.raises(InputError, match="step 2: "):
        train(root, tmp_path, callbacks=(spoil, NonFinite(check_weights=True)), **PLAIN)


class LossOfOneRank(L.Callback):
    """Makes rank 1's loss NaN at step 2, by a constant, so that every gradient stays finite."""

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        forward = CrossEntropy.forward.__get__(pl_module.criterion)
        spoilt = trainer.global_rank == 1 and trainer.global_step == 1
        pl_module.criterion.forward = lambda *inputs: {"loss": forward(*inputs)["loss"] + (math.nan if spoilt else 0)}


def test_a_loss_that_is_not_finite_on_one_rank_stops_all_at_the_same_step(root, tmp_path):
    options = {**PLAIN, "devices": 2, "strategy": "ddp_fork", "every_steps": 1}
    with pytest.raises(Exception, match="step 2: the loss or a gradient is NaN or infinite"):
        train(root, tmp_path, callbacks=(NonFinite(), LossOfOneRank()), **options)
    step = json.loads((tmp_path / "nonfinite_step2" / "step.json").read_text())
    assert step["losses"][1] == ["nan"]
    assert math.isfinite(step["losses"][0][0])
    assert [len(keys) for keys in step["keys"]] == [4, 4]
    assert torch.load(tmp_path / "checkpoints" / LAST, weights_only=True)["global_step"] == 1


def test_a_tolerated_step_changes_no_weight_no_statistic_and_no_logged_sum(root, tmp_path, caplog):
    states: dict[int, dict[str, torch.Tensor]] = {}

    class States(L.Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            state = {f"o{n}": t for n, s in enumerate(trainer.optimizers[0].state.values()) for t in s.values()}
            sums = {"sums": torch.tensor(pl_module.train_totals.state(trainer)["epoch"])}
            everything = {**pl_module.network.state_dict(), **state, **sums}
            states[trainer.global_step] = {name: tensor.clone() for name, tensor in everything.items()}

    guard = NonFinite(tolerance=1)
    options = {**PLAIN, "optimizer": "AdamW", "max_epochs": 2, "log_every_n_steps": 50}
    train(root, tmp_path, callbacks=(guard, Spoil((2,), "image"), States()), **options)
    assert guard.skipped == 1
    for name, tensor in states[1].items():
        assert torch.equal(tensor, states[2][name]), name
    assert not torch.equal(states[2]["head.weight"], states[3]["head.weight"])
    assert "step 2: the loss or a gradient is NaN or infinite: skipped, 1 of 1 allowed" in caplog.text
    assert (tmp_path / "nonfinite_step2" / "step.json").exists()


def test_a_first_step_that_is_skipped_leaves_no_nan_in_the_logged_means(root, tmp_path):
    guard, spoil = NonFinite(tolerance=1), Spoil((1,), "image")
    _, trainer, _ = train(
        root, tmp_path, callbacks=(guard, spoil), **{**PLAIN, "max_epochs": 1, "log_every_n_steps": 3}
    )
    logged = next(c for c in trainer.callbacks if isinstance(c, StepLog)).latest  # type: ignore[attr-defined]
    assert math.isfinite(logged["train/epoch_loss"])
    assert math.isfinite(logged["train/loss"])


def test_the_step_past_the_tolerance_stops_the_run(root, tmp_path):
    with pytest.raises(InputError, match="step 4: "):
        train(root, tmp_path, callbacks=(NonFinite(tolerance=1), Spoil((2, 4), "gradient")), **PLAIN)
    assert sorted(path.name for path in tmp_path.glob("nonfinite*")) == ["nonfinite_step2", "nonfinite_step4"]


def test_a_negative_tolerance_is_refused():
    with pytest.raises(InputError, match=r"nonfinite\.tolerance is -1"):
        NonFinite(tolerance=-1)


# --- replay -------------------------------------------------------------------------------------------------------


def fit(root: Path, folder: Path, *options: str) -> int:
    return main(
        [
            *("fit", "--data.root", str(root), "--run_dir", str(folder), "--wandb.mode", "disabled"),
            *("--model.width", "4", "--data.preprocessing.size", "8", "--data.global_batch_size", "8"),
            *("--trainer.max_epochs", "3", "--trainer.log_every_n_steps", "1", *options),
        ]
    )


def replayed(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    (found,) = folder.glob("nonfinite_step*")
    capsys.readouterr()
    assert main(["replay", str(found)]) == 0
    return capsys.readouterr().out


def log_of_probability(offset: float):
    """A criterion that takes the logarithm of a probability that can be zero, or whose gradient can."""

    def forward(self, logits, targets):
        probability = (100 * logits).softmax(1).gather(1, targets[:, None])[:, 0]
        return {"loss": -torch.log(probability + offset)}

    return forward


def test_replay_names_the_operation_and_the_module_of_a_logarithm_of_zero(root, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(CrossEntropy, "forward", log_of_probability(0.0))
    options = ("--model.optimizer", "SGD", "--model.learning_rate", "3", "--checkpoints.every_steps", "1")
    assert fit(root, tmp_path / "run", *options) == 1
    text = replayed(tmp_path / "run", capsys)
    assert "checkpoint.ckpt" in text
    assert "first in the forward pass: log.default in criterion made infinity of finite numbers" in text
    assert f"{Path(__file__).name}:" in text
    assert "samples with a loss that is not finite: " in text


def test_replay_names_the_backward_operation_where_the_loss_was_finite(root, tmp_path, capsys, monkeypatch):
    def forward(self, logits, targets):
        distance = (logits - logits.detach()).square().sum(1).sqrt()  # its derivative at 0 is 0 / 0
        return {"loss": distance}

    monkeypatch.setattr(CrossEntropy, "forward", forward)
    assert fit(root, tmp_path / "run") == 1
    text = replayed(tmp_path / "run", capsys)
    assert "from the start of the run" in text
    assert "SqrtBackward0 in criterion" in text
    assert "anomaly detection: Function 'SqrtBackward0'" in text or "anomaly detection: Function 'PowBackward0'" in text
    assert f"{Path(__file__).name}" in text


def test_replay_names_the_module_whose_output_overflowed(root, tmp_path, capsys):
    options = ("--model.optimizer", "SGD", "--model.learning_rate", "1e30", "--model.weight_decay", "0")
    assert fit(root, tmp_path / "run", *options) == 1
    text = replayed(tmp_path / "run", capsys)
    assert "in network." in text or "the weights were not finite before this step" in text


def test_replay_follows_skipped_steps_to_the_one_that_stopped_the_run(root, tmp_path, capsys, monkeypatch):
    calls: list[bool] = []

    def forward(self, logits, targets):
        calls.append(logits.requires_grad)
        if logits.requires_grad and sum(calls) in (2, 3):
            logits = logits / logits.detach().mul(0)
        return {"loss": torch.nn.functional.cross_entropy(logits.float(), targets, reduction="none")}

    monkeypatch.setattr(CrossEntropy, "forward", forward)
    assert fit(root, tmp_path / "run", "--nonfinite.tolerance", "1") == 1
    stop = sorted((tmp_path / "run").glob("nonfinite_step*"))[-1]
    assert stop.name == "nonfinite_step3"
    calls.clear()
    capsys.readouterr()
    assert main(["replay", str(stop)]) == 0
    assert sum(calls) == 3
    assert "div.Tensor in criterion made" in capsys.readouterr().out


def test_replay_of_a_folder_that_is_none_says_what_it_looks_for(tmp_path, capsys):
    assert main(["replay", str(tmp_path)]) == 1
    assert "has no step.json; a run that met NaN or infinity leaves RUN/nonfinite_step<N>/" in capsys.readouterr().err
