"""An exported file computes what the network computes, at every batch size and size, or does not exist."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from finished_run import CLASSES, run
from PIL import Image
from torch import Tensor, nn

from template.cli import main
from template.data.transforms import Preprocessing
from template.errors import InputError
from template.model.module import Classifier
from template.results.evaluate import find_checkpoint
from template.results.export import export, export_classifier
from template.results.formats import SUFFIXES, Deployed, Format, load
from template.results.predict import Predictor
from template.results.speed import measure

__all__ = ["run"]


def images_of(batch: int, height: int, width: int) -> Tensor:
    generator = torch.Generator().manual_seed(batch)
    return torch.randint(0, 256, (batch, 3, height, width), dtype=torch.uint8, generator=generator)


def classifier(**settings: object) -> Classifier:
    torch.manual_seed(0)
    made = Classifier(["a", "b", "c"], Preprocessing(size=16), width=4, **settings)  # type: ignore[arg-type]
    with torch.no_grad():  # a network that has not been trained hardly reacts to its input
        made.network.head.weight.mul_(30)  # type: ignore[operator, union-attr]
    return made


@pytest.mark.parametrize("kind", list(SUFFIXES))
def test_every_format_equals_the_checkpoint_at_each_batch_size_and_other_sizes(
    run: Path, tmp_path: Path, kind: Format
) -> None:
    if kind == "onnx":
        pytest.importorskip("onnxruntime", reason="an optional package of the extra 'export'")
    output = tmp_path / f"m{SUFFIXES[kind]}"
    exported = export(run, kind, output, dynamic_size=True)
    assert exported.accuracies is not None
    assert exported.accuracies[0] == exported.accuracies[1]
    assert exported.comparisons[-1].shape == (20, 3, 16, 16)
    opened, predictor = load(kind, output), Predictor(run, device=torch.device("cpu"))
    for shape in ((1, 16, 16), (2, 16, 16), (5, 16, 16), (3, 40, 24)):
        images = images_of(*shape)
        assert (opened(images) - predictor.probabilities(images)).abs().max() < 1e-5, shape


def test_a_model_left_in_train_mode_is_exported_in_eval_mode_and_left_as_it_was(tmp_path: Path) -> None:
    model = classifier(dropout=0.5).train()
    model.network.features[0].eval()  # type: ignore[index, union-attr]
    modes = [module.training for module in model.modules()]
    export_classifier(model, "torchscript", tmp_path / "m.pt")
    assert [module.training for module in model.modules()] == modes
    images = images_of(4, 16, 16)
    expected = model.eval().probabilities(model(model.preprocessing.normalise(images)))
    assert (load("torchscript", tmp_path / "m.pt")(images) - expected).abs().max() < 1e-5


def test_multi_label_probabilities_are_a_sigmoid_each(tmp_path: Path) -> None:
    export_classifier(classifier(task="multilabel"), "pt2", tmp_path / "m.pt2")
    sums = load("pt2", tmp_path / "m.pt2")(images_of(5, 16, 16)).sum(dim=1)
    assert (sums - 1).abs().min() > 0.01


def test_a_mismatch_is_an_error_and_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_normalisation(self: Deployed, images: Tensor) -> Tensor:
        return self.of_logits(self.network(images.float() / 255))

    monkeypatch.setattr(Deployed, "forward", without_normalisation)
    output = tmp_path / "m.pt"
    output.write_text("before")
    with pytest.raises(InputError, match=r"the torchscript file's probabilities differ from the network's by 0\.\d+"):
        export_classifier(classifier(), "torchscript", output)
    assert output.read_text() == "before"
    assert list(tmp_path.iterdir()) == [output]


def test_outputs_that_are_not_numbers_are_a_mismatch(tmp_path: Path) -> None:
    model = classifier()
    with torch.no_grad():
        model.network.head.bias.fill_(float("nan"))  # type: ignore[operator, union-attr]
    with pytest.raises(InputError, match="differ from the network's by nan"):
        export_classifier(model, "torchscript", tmp_path / "m.pt")
    assert not list(tmp_path.iterdir())


def test_a_network_of_one_size_says_so_when_another_is_asked_for(tmp_path: Path) -> None:
    model = classifier()
    model.network = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 3))
    with pytest.raises(InputError, match=r"takes 16 x 16 pixels only .* export without --dynamic_size"):
        export_classifier(model, "pt2", tmp_path / "m.pt2", dynamic_size=True)
    export_classifier(model, "pt2", tmp_path / "m.pt2")


def test_a_size_that_the_graph_has_fixed_is_found_though_the_network_allows_it(tmp_path: Path) -> None:
    class OneBranch(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            rows = images if images.shape[2] == 16 else images * 2  # tracing keeps the branch of its example
            return rows.mean(dim=(2, 3))

    model = classifier()
    model.network = OneBranch()
    with pytest.raises(InputError, match="differ from the network's"):
        export_classifier(model, "torchscript", tmp_path / "m.pt", dynamic_size=True)


def test_names_and_preprocessing_are_in_the_file(run: Path, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx", reason="an optional package of the extra 'export'")
    extra = {"class_names": "", "preprocessing": "", "task": "", "input": ""}
    export(run, "pt2", tmp_path / "m.pt2")
    torch.export.load(tmp_path / "m.pt2", extra_files=extra)
    export(run, "onnx", tmp_path / "m.onnx")
    properties = {entry.key: entry.value for entry in onnx.load(tmp_path / "m.onnx").metadata_props}
    for found in (extra, properties):
        assert json.loads(found["class_names"]) == sorted(CLASSES)
        assert Preprocessing(**json.loads(found["preprocessing"])) == Predictor(run).module.preprocessing
        assert json.loads(found["task"]) == "multiclass"
        assert json.loads(found["input"]) == ["batch", 3, 16, 16]


def test_a_checkpoint_whose_data_is_gone_is_compared_on_random_images(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(find_checkpoint(run), tmp_path / "best.ckpt")
    gone = ["--data.root", str(tmp_path / "gone"), "--skip_timing"]
    assert main(["export", str(tmp_path / "best.ckpt"), "--format", "torchscript", *gone]) == 0
    printed = capsys.readouterr().out
    assert "warning: compared on random images only: no data folder" in printed
    assert printed.splitlines()[-1] == str(tmp_path / "model.pt")
    assert "validation" not in printed


def test_the_example_serves_the_file_without_torch_or_this_package(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="an optional package of the extra 'export'")
    export(run, "onnx", tmp_path / "m.onnx")
    photo = tmp_path / "猫.png"
    ramp = np.linspace(0, 255, 40 * 60 * 3).reshape(40, 60, 3)
    Image.fromarray(ramp.astype(np.uint8)).save(photo)
    script = Path(__file__).parents[1] / "template" / "results" / "serve_onnx.py"
    blocked = "import sys, runpy; sys.modules.update(torch=None, template=None, torchvision=None); del sys.argv[0]; "
    command = [
        sys.executable,
        "-c",
        f"{blocked}runpy.run_path(sys.argv[0])",
        str(script),
        str(tmp_path / "m.onnx"),
        str(photo),
    ]
    printed = subprocess.run(command, check=True, capture_output=True, encoding="utf-8").stdout
    path, name, probability = printed.rstrip("\n").split("\t")
    (row,) = Predictor(run).rows([photo])
    assert (path, name) == (str(photo), row["class"])
    assert float(probability) == pytest.approx(row["probability"], abs=0.01)  # PIL resizes to within a grey level


def test_speeds_are_of_the_network_eager_and_compiled_and_of_the_file(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_compiler(model: nn.Module) -> nn.Module:
        def fail(images: Tensor) -> Tensor:
            raise RuntimeError("no C++ compiler\nand more")

        return fail  # type: ignore[return-value]

    monkeypatch.setattr(torch, "compile", no_compiler)
    export(run, "torchscript", tmp_path / "m.pt")
    eager, compiled, file = measure(run, "torchscript", tmp_path / "m.pt", rounds=3)
    assert [eager.name, compiled.name, file.name] == ["eager", "compiled", "torchscript"]
    assert (compiled.latency_ms, compiled.reason) == (None, "no C++ compiler")
    for speed in (eager, file):
        assert speed.latency_ms is not None
        assert speed.images_per_second is not None
        assert 0 < 1000 / speed.latency_ms < speed.images_per_second
