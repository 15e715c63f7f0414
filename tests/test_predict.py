"""Prediction keeps order and names, reports what it cannot read, and computes what validation computed."""

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from finished_run import CLASSES, run
from PIL import Image

from template.cli import main
from template.errors import InputError
from template.results.evaluate import find_checkpoint, load_with_data
from template.results.predict import Predictor, find_images, predict

__all__ = ["run"]


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def read_json_lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write_image(path: Path, seed: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 255, (20, 24, 3), dtype=np.uint8)).save(path)
    return path


def test_logits_equal_those_of_validation_with_nothing_but_the_checkpoint(run: Path, tmp_path: Path) -> None:
    module, datamodule = load_with_data(run)
    index = datamodule.splits["val"]
    seen: list[torch.Tensor] = []
    module.criterion.register_forward_hook(lambda _, inputs, output: seen.append(inputs[0]))
    import lightning.pytorch as L

    trainer = L.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False)
    trainer.validate(module, datamodule, verbose=False)

    shutil.copytree(run.parent / "données" / "val", tmp_path / "val")
    shutil.copy(find_checkpoint(run), tmp_path / "only.ckpt")
    predictor = Predictor(tmp_path / "only.ckpt", device=torch.device("cpu"))
    images = torch.stack([predictor.read(tmp_path / path) for path in index.paths])
    assert predictor.class_names == tuple(sorted(CLASSES))
    assert (predictor.logits(images) - torch.cat(seen)).abs().max() < 1e-5


def test_rows_come_in_the_order_of_the_paths_and_equal_names_stay_apart(run: Path, tmp_path: Path) -> None:
    paths = [write_image(tmp_path / name, seed) for seed, name in enumerate(["b/1.png", "a/1.png", "c.png"])]
    output = tmp_path / "out.csv"
    assert predict(run, [tmp_path / "b", tmp_path / "c.png", tmp_path / "a"], output, batch_size=2) == (3, 0)
    assert [row["path"] for row in read_csv(output)] == [str(paths[0]), str(paths[2]), str(paths[1])]


def test_a_path_in_any_script_comes_back_exactly_in_utf_8(run: Path, tmp_path: Path) -> None:
    path = write_image(tmp_path / "données" / "猫 1" / 'ñ, "x".png')
    for name in ("out.csv", "out.jsonl"):
        predict(run, [path], tmp_path / name)
    assert read_csv(tmp_path / "out.csv")[0]["path"] == str(path)
    assert json.loads((tmp_path / "out.jsonl").read_text(encoding="utf-8"))["path"] == str(path)
    assert "猫" in (tmp_path / "out.jsonl").read_text(encoding="utf-8")


def test_the_class_is_a_name_and_the_probability_its_own(run: Path, tmp_path: Path) -> None:
    path = write_image(tmp_path / "a.png")
    predict(run, [path], tmp_path / "out.csv", top_k=3)
    (row,) = read_csv(tmp_path / "out.csv")
    predictor = Predictor(run)
    probabilities = predictor.probabilities(predictor.read(path)[None])[0]
    names = [row["class"], row["class_2"], row["class_3"]]
    values = [float(row[name]) for name in ("probability", "probability_2", "probability_3")]
    assert set(names) == set(CLASSES)
    assert values == sorted(values, reverse=True)
    for name, value in zip(names, values, strict=True):
        assert value == pytest.approx(float(probabilities[predictor.class_names.index(name)]), abs=1e-6)


def test_csv_json_lines_and_parquet_hold_the_same_rows(run: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="an optional package of the extra 'parquet'")
    write_image(tmp_path / "images" / "a.png")
    (tmp_path / "images" / "b.png").write_bytes(b"")
    for suffix in ("csv", "jsonl", "parquet"):
        predict(run, [tmp_path / "images"], tmp_path / f"out.{suffix}", top_k=2)
    rows = read_json_lines(tmp_path / "out.jsonl")
    table = parquet.read_table(tmp_path / "out.parquet").to_pylist()
    for row, other, third in zip(rows, table, read_csv(tmp_path / "out.csv"), strict=True):
        assert list(row) == list(other) == list(third)
        for name, value in row.items():
            if isinstance(value, float):
                assert other[name] == pytest.approx(value, rel=1e-6)
                assert float(third[name]) == pytest.approx(value, abs=1e-6)
            else:
                assert other[name] == value
                assert third[name] == (value or "")


def test_an_unreadable_file_has_its_reason_in_its_own_row_and_is_counted(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_image(tmp_path / "images" / "a.png")
    (tmp_path / "images" / "b.png").write_text("<html>no image</html>")
    write_image(tmp_path / "images" / "c.png")
    output = tmp_path / "out.csv"
    assert main(["predict", str(run), str(tmp_path / "images"), "--output", str(output)]) == 0
    rows = read_csv(output)
    assert [bool(row["class"]) for row in rows] == [True, False, True]
    assert "cannot identify image file" in rows[1]["error"]
    assert [row["error"] for row in rows[::2]] == ["", ""]
    assert "3 rows" in (out := capsys.readouterr().out)
    assert "1 file could not be read" in out


def test_where_no_file_can_be_read_there_is_an_error_and_no_output(run: Path, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"")
    with pytest.raises(InputError, match=r"none of the 1 files can be read.*a\.png"):
        predict(run, [tmp_path / "a.png"], tmp_path / "out.csv")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.png"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("m.csv", "label,path\nx,a/1.png\ny,gone.png\n"),
        ("m.tsv", "path\tlabel\na/1.png\tx\ngone.png\ty\n"),
        ("m.jsonl", '{"path": "a/1.png"}\n\n{"path": "gone.png"}\n'),
    ],
)
def test_a_manifest_names_images_from_its_own_folder(run: Path, tmp_path: Path, name: str, text: str) -> None:
    write_image(tmp_path / "a" / "1.png")
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert predict(run, [tmp_path / name], tmp_path / "out.csv") == (2, 1)
    rows = read_csv(tmp_path / "out.csv")
    assert [row["path"] for row in rows] == [str(tmp_path / "a/1.png"), str(tmp_path / "gone.png")]
    assert "gone.png" in rows[1]["error"]


def test_a_manifest_without_paths_names_the_nearest_column(tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_text("paths,label\na.png,x\n")
    with pytest.raises(InputError, match=r"row 1 of .*m\.csv has no 'path'.*It has paths, label"):
        find_images([tmp_path / "m.csv"])


def test_flips_average_an_image_with_its_mirror_image(run: Path, tmp_path: Path) -> None:
    image = Predictor(run).read(write_image(tmp_path / "a.png"))
    plain, both = Predictor(run), Predictor(run, flip=True)
    mean = (plain.probabilities(image[None]) + plain.probabilities(image.flip(-1)[None])) / 2
    assert not torch.allclose(plain.probabilities(image[None]), mean, atol=1e-4)
    torch.testing.assert_close(both.probabilities(image[None]), mean)


def test_two_processes_write_the_file_that_one_writes(run: Path, tmp_path: Path) -> None:
    for seed in range(5):
        write_image(tmp_path / "images" / f"{seed}.png", seed)
    (tmp_path / "images" / "3.png").write_bytes(b"no image")
    for processes in (1, 2):
        counts = predict(run, [tmp_path / "images"], tmp_path / f"{processes}.jsonl", 2, False, 2, processes)
        assert counts == (5, 1)
    one, two = (read_json_lines(tmp_path / f"{processes}.jsonl") for processes in (1, 2))
    for row, other in zip(one, two, strict=True):
        assert other == {name: pytest.approx(v, abs=1e-6) if isinstance(v, float) else v for name, v in row.items()}


def test_clutter_in_a_folder_is_no_row(tmp_path: Path) -> None:
    for name in (".DS_Store", "Thumbs.db", "._a.png", "notes.txt"):
        (tmp_path / name).write_bytes(b"x")
    write_image(tmp_path / ".hidden" / "a.png")
    image = write_image(tmp_path / "a.png")
    assert find_images([tmp_path]) == [image]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--top_k", "4"], "--top_k is 4, and the checkpoint knows 3 classes"),
        (["--top_k", "0"], "--top_k is 0; expected 1 or more"),
        (["--output", "out.xlsx"], "--output is out.xlsx; expected a name that ends in .csv, .jsonl, .parquet"),
        (["--output", "nowhere/out.csv"], "there is no folder nowhere; make it first"),
    ],
)
def test_a_wrong_option_is_named_with_what_was_expected(
    run: Path, tmp_path: Path, options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", str(run), str(write_image(tmp_path / "a.png")), *options]) == 1
    assert words in capsys.readouterr().err
