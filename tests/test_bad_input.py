"""What a person gets wrong: one clear line, a status that is not 0, no traceback, and no run folder left."""

from pathlib import Path

import pytest
from PIL import Image

from template.errors import InputError


@pytest.fixture
def refused(command, small, tmp_path):
    """Run ``fit`` on good images with something wrong, and return the one line it says."""

    def run(*wrong: str, good: bool = True) -> str:
        status, out, errors = command("fit", *(small if good else []), *wrong)
        assert status in (1, 2)
        assert errors.startswith("error: ")
        assert errors.count("\n") == 1, errors
        assert "Traceback" not in out + errors
        assert not list((tmp_path / "runs").glob("*/*")), "a run folder was left"
        return errors.removeprefix("error: ").rstrip("\n")

    return run


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            ("--data.root", "photos"),
            "no data folder at photos; create it, or point data.root at your images (--data.root DIR)",
        ),
        (("--data.global_batch_size", "-8"), "data.global_batch_size is -8; expected 1 or more"),
        (("--data.global_batch_size", "many"), "data.global_batch_size is many; expected int"),
        (("--data.num_workers", "-1"), "data.num_workers is -1; expected 0 or more"),
        (("--data.val_fraction", "1.5"), "data.val_fraction is 1.5; expected 0 to 1, 1 excluded"),
        (("--data.source", "digit"), "data.source is 'digit'; did you mean 'digits'? Known: folder, digits, MNIST"),
        (("--data.preprocessing.mean", "[0, 0]"), "data.preprocessing.mean is [0, 0]; expected tuple with 3 elements"),
        (("--data.augmentation.flip", "2"), "augmentation.flip is 2.0; expected 0 to 1"),
        (("--model.network", "resnt18"), "model.network is 'resnt18'; did you mean 'resnet18'? Known: small"),
        (("--model.optimizer", "Adamw"), "model.optimizer is 'Adamw'; did you mean 'AdamW'? Known: "),
        (("--trainer.gradient_clip_val", "-1"), "trainer.gradient_clip_val is -1; expected 0 or more"),
        (("--model.optimizer_options", "{beta: 1}"), "model.optimizer_options has 'beta', which AdamW does not take;"),
        (("--model.task", "binary"), "model.task is binary; expected one of ['multiclass', 'multilabel']"),
        (("--model.learning_rate", "-1"), "model.learning_rate is -1.0; expected 0 or more"),
        (("--model.width", "0"), "model.width is 0; expected 1 or more"),
        (("--model.dropout", "2"), "model.dropout is 2.0; expected 0 to 1, 1 excluded"),
        (("--model.label_smoothing", "1"), "model.label_smoothing is 1.0; expected 0 to 1, 1 excluded"),
        (("--model.class_weights", "[1, 2, 3]"), "model.class_weights has 3 numbers for 2 classes"),
        (
            ("--checkpoints.monitor", "val/acuracy"),
            "checkpoints.monitor is 'val/acuracy', which validation does not report; did you mean 'val/accuracy'? "
            "It reports val/loss, val/accuracy, val/auroc, val/calibration_error, val/macro_f1",
        ),
        (("--checkpoints.mode", "up"), "checkpoints.mode is up; expected one of ['max', 'min']"),
        (("--checkpoints.keep_best", "0"), "checkpoints.keep_best is 0; expected above 0"),
        (("--early_stopping.patience", "0"), "early_stopping.patience is 0; expected 1 or more validations, or null"),
        (("--warmup_cosine.warmup_epochs", "2"), "warmup_cosine.warmup_epochs is 2, which is 8 steps of a run of 8;"),
        (("--warmup_cosine.final", "-1"), "warmup_cosine.final is -1; expected 0 to 1, a share of the peak"),
        (("--trainer.max_epochs", "two"), "trainer.max_epochs is two; expected int or null"),
        (("--trainer.max_epochs", "0"), "the run ended after 0 steps and before its first validation"),
        (("--trainer.log_every_n_steps", "0"), "trainer.log_every_n_steps is 0; expected 1 or more"),
        (("--trainer.accelerator", "gpuu"), "You selected an invalid accelerator name: `accelerator='gpuu'`."),
        (("--trainer.limit_val_batches", "1.5"), "You have passed invalid value 1.5 for limit_val_batches"),
        (("--trainer.accumulate_grad_batches", "3"), "trainer.accumulate_grad_batches is 3; leave it out: it follows"),
        (("--seed", "-1"), "seed is -1; expected 0 to 4294967295"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_wrong_value_is_named_with_what_was_expected(refused, wrong, message):
    assert refused(*wrong).startswith(message)


def test_options_without_data_name_the_one_that_is_missing(refused):
    assert refused(good=False) == "data.root is missing; see python -m template fit --help"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\ndata: [1,\n  root: x\n", "bad.yaml line 4 is not YAML: expected ',' or ']'"),
        (
            "data:\n\troot: x\n",
            "bad.yaml line 2 is not YAML: found character '\\t' that cannot start",
        ),
        ("seed: 1\nseed: 2\n", "bad.yaml line 2: seed is there already, in line 1; keep one of the two"),
        ("- seed\n- 1\n", "bad.yaml is not a mapping; expected lines such as seed: 1, see configs/ for examples"),
        ("train well\n", "bad.yaml is not a mapping"),
        ("# nothing\n", "bad.yaml is empty"),
        ("seed: 1\nmodel: 3\n", "bad.yaml line 2: model is '3'; expected a mapping, its options below it"),
        ("data:\n  augmentation:\n    # flip: 1\n", "bad.yaml line 2: data.augmentation is empty or a list; expected"),
        ("data:\n  num_workers: all\n", "bad.yaml line 2: data.num_workers is all; expected int"),
        (b"\xff\xfe\x00", "cannot read bad.yaml: 'utf-8' codec can't decode byte 0xff"),
        ("trainer: {callbacks: [{class_path: no.Such}]}\n", "bad.yaml line 1: no.Such: No module named 'no'"),
    ],
    ids=["list", "tab", "twice", "top list", "top word", "empty", "group", "commented group", "type", "utf", "class"],
)
def test_a_config_file_that_is_wrong_is_named_with_its_line(refused, tmp_path, text, message):
    (tmp_path / "bad.yaml").write_bytes(text.encode() if isinstance(text, str) else text)
    assert refused("--config", "bad.yaml").startswith(message)


def test_a_config_file_that_is_not_there_suggests_one_beside_it(refused, tmp_path):
    (tmp_path / "digits.yaml").write_text("seed: 1\n")
    assert refused("--config", "digts.yaml") == "no config file at digts.yaml; did you mean 'digits.yaml'?"


def test_a_single_class_is_too_few(refused, tmp_path):
    (tmp_path / "photos/cat").mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(tmp_path / "photos/cat/a.png")
    assert refused("--data.root", "photos") == (
        "photos has 1 class folder with images (cat); at least 2 are needed: one folder for each class"
    )


def test_a_run_dir_that_holds_files_is_refused_and_left_alone(refused, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").write_text("mine")
    assert refused("--run_dir", "mine") == "mine is not an empty folder; choose another --run_dir"
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]


def test_a_run_dir_that_cannot_be_made_is_one_line(refused, tmp_path):
    (tmp_path / "file").write_text("")
    assert "'file/run'" in refused("--run_dir", "file/run")


def test_a_run_that_fails_before_its_first_step_takes_its_own_run_dir_with_it(refused, tmp_path):
    refused("--run_dir", "mine", "--warmup_cosine.warmup_epochs", "9")
    assert not (tmp_path / "mine").exists()


def test_a_run_that_fails_later_keeps_its_folder_and_train_log_says_why(command, small, tmp_path):
    status, _, errors = command("fit", *small, "--run_dir", "run", "--trainer.limit_val_batches", "0")
    assert status == 1
    reason = "the run ended after 8 steps and before its first validation"
    assert errors.startswith(f"error: {reason}")
    assert (tmp_path / "run/checkpoints/last.ckpt").exists()
    assert not (tmp_path / "run/metrics.json").exists()
    assert reason in (tmp_path / "run/train.log").read_text().splitlines()[-1]


def test_debug_shows_the_traceback(command, small):
    with pytest.raises(InputError, match="no data folder at photos"):
        command("fit", *small, "--data.root", "photos", "--debug")


@pytest.mark.parametrize("name", ["evaluate", "predict"])
def test_a_checkpoint_that_is_not_there_is_named(command, class_folders, name):
    paths = [str(class_folders)] if name == "predict" else []
    status, _, errors = command(name, "runs/none.ckpt", *paths)
    assert status == 1
    assert errors == "error: runs/none.ckpt is neither a checkpoint nor a run folder with checkpoints/last.ckpt\n"


@pytest.mark.parametrize("name", ["evaluate", "predict"])
def test_a_file_that_is_no_checkpoint_is_named(command, class_folders, tmp_path, name):
    (tmp_path / "half.ckpt").write_bytes(b"PK\x03\x04 half")
    paths = [str(class_folders)] if name == "predict" else []
    status, _, errors = command(name, "half.ckpt", *paths)
    assert status == 1
    assert errors.startswith("error: cannot read the checkpoint half.ckpt: ")
    assert errors.count("\n") == 1


@pytest.mark.parametrize(
    ("source", "where"),
    [
        ("FashionMNIST", "the four .gz files in data/FashionMNIST/raw/"),
        ("CIFAR10", "the archive at data/cifar-10-python.tar.gz"),
    ],
)
def test_a_download_that_fails_says_where_to_put_the_files(refused, monkeypatch, source, where):
    from torchvision import datasets

    def download(self: object) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(getattr(datasets, source), "download", download)
    message = refused("--data.source", source, "--data.root", "data")
    assert message == f"{source} is not in data and could not be downloaded (OSError); put {where}"
    assert not Path("runs").exists()
