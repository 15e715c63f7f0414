"""The command line: config files, their layers, help, and what is said about options that are not there."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml

from template.cli import COMMANDS, parse_fit

ROOT = Path(__file__).parent.parent


def test_the_list_of_commands_comes_within_a_second_and_a_half_and_without_torch():
    start = time.perf_counter()
    code = "import sys; from template.cli import main; main(['--help']); assert 'torch' not in sys.modules"
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert time.perf_counter() - start < 1.5
    assert all(f"  {name} " in out for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_has_its_own_help(command, name):
    status, out, errors = command(name, "--help")
    assert (status, errors) == (0, "")
    assert f"python -m template {name}" in out
    assert COMMANDS[name] in out


def test_the_help_of_fit_has_the_constructors_words_and_defaults(command):
    _, out, _ = command("fit", "--help")
    assert "--data.global_batch_size GLOBAL_BATCH_SIZE" in out
    assert "Samples in one optimizer step, over all devices and accumulated batches." in out
    assert "(type: int, default: 128)" in out


def test_config_files_layer_and_the_later_one_and_the_command_line_win(tmp_path):
    (tmp_path / "a.yaml").write_text("data: {root: here, num_workers: 1}\nseed: 1\nmodel: {width: 8}\n")
    (tmp_path / "b.yaml").write_text("data: {num_workers: 2}\nseed: 2\n")
    files = ["--config", str(tmp_path / "a.yaml"), "--config", str(tmp_path / "b.yaml")]
    options, config, name = parse_fit([*files, "--seed=3"])
    assert (config["data"]["root"], config["data"]["num_workers"], config["model"]["width"]) == ("here", 2, 8)
    assert (config["seed"], options.seed) == (3, 3)
    assert name == "a"


def test_print_config_prints_a_complete_config_and_runs_nothing(command, small, tmp_path):
    status, out, _ = command("fit", *small, "--print_config")
    printed = yaml.safe_load(out)
    assert status == 0
    assert printed["model"]["width"] == 4
    assert printed["checkpoints"] == {
        "monitor": "val/accuracy",
        "mode": "max",
        "keep_best": 1,
        "every_steps": None,
        "every_minutes": None,
    }
    assert not (tmp_path / "runs").exists()


def test_the_config_of_a_run_gives_the_same_run_again(command, small):
    status, _, errors = command("fit", *small, "--run_dir", "first", "--seed", "7", "--model.dropout", "0.1")
    assert (status, errors) == (0, "")
    status, out, _ = command("fit", "--config", "first/config.yaml")
    assert status == 0
    first, second = Path("first"), Path(out.splitlines()[-1])
    weights = [torch.load(run / "checkpoints/last.ckpt", weights_only=True)["state_dict"] for run in (first, second)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    configs = [(run / "config.yaml").read_text().split("\n", 1)[1] for run in (first, second)]
    assert configs[0] == configs[1]


UNKNOWN = {
    "seeed": "seed",
    "trainer.max_epoch": "trainer.max_epochs",
    "data.globl_batch_size": "data.global_batch_size",
    "data.preprocessing.sise": "data.preprocessing.size",
    "warmup_cosine.warmup_epoch": "warmup_cosine.warmup_epochs",
}


@pytest.mark.parametrize(("wrong", "right"), UNKNOWN.items())
def test_an_unknown_option_on_the_command_line_suggests_the_nearest(command, small, wrong, right):
    status, _, errors = command("fit", *small, f"--{wrong}", "3")
    assert status == 2
    assert errors == f"error: no option {wrong!r}; did you mean {right!r}? See python -m template fit --help\n"


@pytest.mark.parametrize(("wrong", "right"), UNKNOWN.items())
def test_an_unknown_key_in_a_file_suggests_the_nearest_and_names_file_and_line(command, tmp_path, wrong, right):
    *groups, last = wrong.split(".")
    text = "# a comment\n" + "".join(f"{'  ' * depth}{group}:\n" for depth, group in enumerate(groups))
    (tmp_path / "a.yaml").write_text(f"{text}{'  ' * len(groups)}{last}: 3\n")
    (tmp_path / "b.yaml").write_text("seed: 1\n")
    status, _, errors = command("fit", "--config", "b.yaml", "--config=a.yaml")
    assert status == 2
    place = f"a.yaml line {len(groups) + 2}"
    assert errors.startswith(f"error: {place}: no option {wrong!r}; did you mean {right!r}?")


@pytest.mark.parametrize("short", ["--see", "--conf", "--data.global", "--print"])
def test_abbreviated_options_are_refused(command, small, short):
    status, _, errors = command("fit", *small, short, "1")
    assert status == 2
    assert f"no option {short[2:]!r}" in errors


def test_evaluate_and_predict_refuse_abbreviations_and_suggest_too(command):
    status, _, errors = command("evaluate", "run", "--spli", "val")
    assert (status, errors) == (
        2,
        "error: no option 'spli'; did you mean 'split'? See python -m template evaluate --help\n",
    )
    status, _, errors = command("predict")
    assert status == 2
    assert errors == "error: CHECKPOINT|RUN, PATH is missing; see python -m template predict --help\n"


def test_an_unknown_command_suggests_the_nearest(command):
    status, _, errors = command("evalute")
    assert status == 2
    assert errors.startswith("error: no command 'evalute'; did you mean 'evaluate'? Commands: fit")


@pytest.mark.parametrize(
    ("option", "instead"),
    [
        ("trainer.logger", "set wandb.mode, or tensorboard to true"),
        ("trainer.default_root_dir", "set run_dir"),
        ("trainer.enable_checkpointing", "set checkpoints.keep_best"),
        ("trainer.use_distributed_sampler", "leave it out"),
        ("data.seed", "set seed"),
        ("model.class_names", "the names of the data's class folders"),
        ("model.preprocessing", "set data.preprocessing"),
        ("checkpoints.folder", "set run_dir"),
    ],
)
def test_an_option_that_the_template_sets_itself_is_refused_with_what_to_do_instead(command, small, option, instead):
    status, _, errors = command("fit", *small, f"--{option}", "true")
    assert status == 2
    assert errors.startswith(f"error: {option} is the template's own; ")
    assert instead in errors


def test_a_value_on_the_command_line_is_not_blamed_on_a_file(command, tmp_path):
    (tmp_path / "a.yaml").write_text("data: {root: x}\nseed: 1\n")
    _, _, errors = command("fit", "--config", "a.yaml", "--seed", "one")
    assert errors == "error: seed is one; expected int\n"


def test_callbacks_of_a_persons_own_join_the_templates(command, small, tmp_path):
    (tmp_path / "own.yaml").write_text(
        "trainer:\n  callbacks:\n  - class_path: lightning.pytorch.callbacks.LambdaCallback\n"
        "  - class_path: lightning.pytorch.callbacks.Timer\n    init_args: {duration: '00:01:00:00'}\n"
    )
    status, out, errors = command("fit", *small, "--config", "own.yaml")
    assert (status, errors) == (0, "")
    checkpoint = torch.load(Path(out.splitlines()[-1]) / "checkpoints/last.ckpt", weights_only=True)
    kept = " ".join(checkpoint["callbacks"])
    assert "Timer" in kept
    assert "Checkpoints" in kept


def test_lightnings_debugging_switches_keep_working(command, small):
    status, out, errors = command("fit", *small, "--trainer.fast_dev_run", "true")
    assert (status, errors) == (0, "")
    assert not Path("runs").exists(), "fast_dev_run leaves nothing"

    for switch, steps in {"limit_train_batches": 2 * 2, "overfit_batches": 2 * 2}.items():
        status, out, errors = command("fit", *small, f"--trainer.{switch}", "2")
        assert (status, errors) == (0, ""), switch
        last = Path(out.splitlines()[-1]) / "checkpoints/last.ckpt"
        assert torch.load(last, weights_only=True)["global_step"] == steps, switch


def test_the_classes_work_from_plain_python_in_ten_lines(class_folders, tmp_path):
    import lightning.pytorch as L

    from template.callbacks.checkpoints import Checkpoints
    from template.callbacks.step_log import StepLog
    from template.callbacks.warmup_cosine import WarmupCosine
    from template.data.datamodule import DataModule
    from template.data.transforms import Preprocessing
    from template.model.module import Classifier, load_classifier

    data = DataModule(class_folders, preprocessing=Preprocessing(size=8), global_batch_size=8)
    model = Classifier(data.class_names, data.preprocessing, data.settings(), width=4)
    checkpoints = Checkpoints()
    trainer = L.Trainer(
        max_epochs=2,
        log_every_n_steps=2,
        accelerator="cpu",
        callbacks=[StepLog(), WarmupCosine(warmup_epochs=0.5), checkpoints],
        default_root_dir=tmp_path,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, data)
    trainer.test(model, data, ckpt_path=checkpoints.best_model_path, verbose=False)
    classifier, _ = load_classifier(Path(checkpoints.best_model_path))

    assert trainer.global_step == 8
    assert trainer.callback_metrics["test/accuracy"] >= 0.5
    assert classifier.class_names == ("dark", "light")
