"""The learning rate is a function of the step, for every schedule, and resumes as such: tests/test_schedules.py"""

from pathlib import Path
from typing import Any

import lightning.pytorch as L
import pytest
import torch
from training import assert_same_state, train, write_images

from template.callbacks.averaging import MovingAverage
from template.callbacks.schedules import Schedule, Stepwise, falls_on_plateaus
from template.callbacks.warmup_cosine import WarmupCosine, warmup_cosine
from template.errors import InputError


@pytest.mark.parametrize(("total", "warmup"), [(10, 0), (10, 3), (10, 9), (2, 1), (1, 0)])
def test_the_cosine_is_at_its_peak_after_the_warmup_and_exactly_final_at_the_last_step(total, warmup):
    factors = [warmup_cosine(step, total, warmup, 0.1) for step in range(total)]
    assert factors[-1] == 0.1
    assert factors[0] == (1.0 if warmup == 0 and total > 1 else 1 / (warmup + 1) if warmup else 0.1)
    assert factors[:warmup] == [(step + 1) / (warmup + 1) for step in range(warmup)]
    if warmup < total - 1:
        assert factors[warmup] == 1.0
    assert all(one > other for one, other in zip(factors[warmup:], factors[warmup + 1 :], strict=False))


def test_the_cosine_is_halfway_in_the_middle():
    assert warmup_cosine(52, 101, 4, 0.2) == pytest.approx(0.6)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_images(tmp_path_factory.mktemp("images"), {"train": 29, "val": 7, "test": 4})


class Rates(L.Callback):
    """Learning rates that the optimizer steps were taken with."""

    def __init__(self) -> None:
        self.rates: list[float] = []

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: torch.optim.Optimizer) -> None:
        self.rates.append(optimizer.param_groups[0]["lr"])


@pytest.mark.parametrize("max_batch", [None, 3])
def test_the_last_step_of_a_run_has_the_final_rate_whatever_the_accumulation(images, tmp_path, max_batch):
    rates = Rates()
    _, trainer, _ = train(images, tmp_path, max_batch=max_batch, callbacks=(rates,))
    assert trainer.global_step == 12  # 29 samples in batches of 8, 3 epochs
    assert rates.rates == pytest.approx([1e-3 * warmup_cosine(step, 12, 2) for step in range(12)])
    assert rates.rates[-1] == 0.0


def test_constant_and_step_schedules_warm_up_and_then_stay_or_fall():
    def factors(**options: Any) -> list[float]:
        schedule = Stepwise(Schedule(**options), "val/loss", "min", 0.5)
        schedule.warmup, schedule.steps_per_epoch = 2, 4
        return [schedule.factor(step) for step in range(12)]

    assert factors(shape="constant") == pytest.approx([1 / 3, 2 / 3, *[1.0] * 10])
    assert factors(shape="step", every_epochs=1, factor=0.5) == pytest.approx(
        [1 / 3, 2 / 3, 1.0, 1.0, *[0.5] * 4, *[0.25] * 4]
    )


@pytest.mark.parametrize(
    ("scores", "mode", "falls"),
    [
        ([], "min", 0),
        ([1.0, 0.9, 0.8], "min", 0),
        ([1.0, 1.0, 1.1], "min", 1),
        ([1.0, 1.1, 0.9, 1.0, 0.95], "min", 1),
        ([0.5, 0.5, 0.5, 0.4, 0.4], "max", 2),
        ([0.5, float("nan"), float("nan")], "max", 1),
    ],
)
def test_a_plateau_is_as_many_scores_no_better_than_the_best_as_its_patience(scores, mode, falls):
    assert falls_on_plateaus(scores, mode, patience=2) == falls


def test_a_plateau_is_that_of_torch():
    scores = torch.rand(40, generator=torch.Generator().manual_seed(1)).tolist()
    weight = torch.nn.Parameter(torch.zeros(()))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    reference = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=2, threshold=0.0)
    for n, score in enumerate(scores, 1):
        reference.step(score)  # falls when more than `patience` epochs were bad
        assert optimizer.param_groups[0]["lr"] == 0.5 ** falls_on_plateaus(scores[:n], "min", patience=3)


def plateau() -> Stepwise:
    """A schedule that falls where the loss does: the loss of the run below does in every validation."""
    return Stepwise(Schedule("plateau", factor=0.5, patience=1), "val/loss", "max")


def test_a_plateau_falls_in_a_run_and_resumes_to_the_same_bits(images, tmp_path):
    def run(folder: Path, resume: Path | None = None) -> Any:
        own = plateau()
        keep = tmp_path / "kept" if resume is None else None
        rates = Rates()
        options: dict[str, Any] = {"optimizer": "SGD", "model": {"learning_rate": 3.0}, "schedule": own}
        return *train(images, folder, resume, keep=keep, callbacks=(rates,), **options), rates, own

    module, trainer, _, rates, own = run(tmp_path / "whole")
    assert own.scores == sorted(own.scores, reverse=True)
    assert rates.rates == [3.0] * 8 + [1.5] * 4
    for path in sorted((tmp_path / "kept").iterdir())[:-1]:
        resumed, again, _, some, _ = run(tmp_path / path.stem, path)
        assert_same_state((resumed, again), (module, trainer))
        assert some.rates == rates.rates[-len(some.rates) :]


def test_an_option_out_of_range_is_refused():
    with pytest.raises(InputError, match=r"schedule\.factor is 2"):
        Schedule("step", factor=2)
    with pytest.raises(InputError, match="patience 0"):
        Schedule("plateau", patience=0)


def test_fit_takes_a_schedule_and_refuses_a_monitor_that_is_not_reported(command, small, tmp_path):
    status, _, errors = command("fit", *small, "--schedule.shape", "plateau", "--checkpoints.monitor", "val/los")
    assert (status, "did you mean 'val/loss'" in errors) == (1, True)
    folder = tmp_path / "run"
    options = ("--schedule.shape", "step", "--schedule.every_epochs", "1", "--schedule.factor", "0.5")
    status, _, errors = command(
        *("fit", *small, *options, "--report", "false", "--run_dir", folder, "--trainer.log_every_n_steps", "1"),
    )
    assert status == 0, errors
    header, *rows = [line.split(",") for line in (folder / "metrics.csv").read_text().splitlines()]
    rates = [row[header.index("train/learning_rate")] for row in rows]
    assert [float(rate) for rate in rates if rate] == [1e-3] * 4 + [5e-4] * 4


def test_an_average_of_the_weights_is_a_function_of_the_trajectory_and_leaves_it_alone(images, tmp_path):
    class Average(L.Callback):
        """The definition: average = 0.8 average + 0.2 weights, from the first step's weights on."""

        def __init__(self) -> None:
            self.average: torch.Tensor | None = None

        def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
            weights = pl_module.network.head.weight.detach().clone()
            self.average = weights if self.average is None else 0.8 * self.average + 0.2 * weights

    plain = train(images, tmp_path / "plain")
    own = Average()
    averaged = train(images, tmp_path / "averaged", callbacks=(own, MovingAverage(0.8)))
    last = torch.load(tmp_path / "averaged" / "checkpoints" / "last.ckpt", weights_only=True)
    raw = plain[0].state_dict()
    assert all(torch.equal(tensor, raw[name]) for name, tensor in last["current_model_state"].items())
    assert own.average is not None
    assert (last["state_dict"]["network.head.weight"] - own.average).abs().max() < 1e-6
    assert not torch.equal(last["state_dict"]["network.head.weight"], raw["network.head.weight"])
    assert torch.equal(averaged[0].state_dict()["network.head.weight"], last["state_dict"]["network.head.weight"])


def test_an_average_resumes_to_the_same_bits(images, tmp_path):
    def run(folder: Path, resume: Path | None = None, **options: Any) -> Any:
        return train(images, folder, resume, callbacks=(MovingAverage(0.8),), every_steps=1, **options)[:2]

    whole = run(tmp_path / "whole", keep=tmp_path / "kept")
    for path in sorted((tmp_path / "kept").iterdir())[1:-1:4]:
        resumed = run(tmp_path / path.stem, path)
        assert_same_state(resumed, whole)
        files = [tmp_path / name / "checkpoints" / "last.ckpt" for name in (path.stem, "whole")]
        one, other = (torch.load(file, weights_only=True)["current_model_state"] for file in files)
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_the_test_and_evaluate_use_the_average_and_say_so(command, small, tmp_path):
    folder = tmp_path / "run"
    common = ("--run_dir", folder, "--report", "false", "--ema.decay", "0.9")
    status, _, errors = command("fit", *small, *common)
    assert status == 0, errors
    import json

    stored = json.loads((folder / "metrics.json").read_text())
    status, printed, errors = command("evaluate", folder)
    assert status == 0, errors
    assert "the weights are the moving average" in printed + errors
    assert f"{stored['test/loss']:.4f}" in printed


def test_a_warmup_longer_than_the_run_is_refused(images, tmp_path):
    with pytest.raises(InputError, match=r"warmup_cosine\.warmup_epochs is 9"):
        train(images, tmp_path, schedule=WarmupCosine(9))
