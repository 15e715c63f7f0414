"""The three deployment formats: what is put into a file, how it is written, how it is opened again."""

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from template import __version__
from template.errors import InputError
from template.model.module import Classifier

Format = Literal["onnx", "pt2", "torchscript"]
SUFFIXES: dict[Format, str] = {"onnx": ".onnx", "pt2": ".pt2", "torchscript": ".pt"}


class Deployed(nn.Module):
    """What is exported: a classifier with its normalisation and its probabilities.

    Args:
        classifier: The classifier; its network is shared, not copied.
    """

    def __init__(self, classifier: Classifier) -> None:
        super().__init__()
        self.network = classifier.network
        self.preprocessing = classifier.preprocessing
        self.of_logits = classifier.probabilities

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) uint8 to (B, K) float32 probabilities."""
        return self.of_logits(self.network(self.preprocessing.normalise_unit(images.float() / 255)))


def write(model: Deployed, kind: Format, path: Path, dynamic_size: bool, about: dict[str, str]) -> None:
    """Write the file; its graph is open in the batch, and where asked in height and width.

    Raises:
        InputError: The network cannot be exported in this format.
    """
    size = model.preprocessing.size
    example = torch.randint(0, 256, (2, 3, size, size), dtype=torch.uint8)
    names = {0: "batch", 2: "height", 3: "width"} if dynamic_size else {0: "batch"}
    try:
        if kind == "onnx":
            _write_onnx(model, example, path, names, about)
        elif kind == "pt2":
            shapes = {"images": dict.fromkeys(names, torch.export.Dim.AUTO)}
            with torch.no_grad():
                program = torch.export.export(model, (example,), dynamic_shapes=shapes)
            torch.export.save(program, path, extra_files=about)
        else:
            with warnings.catch_warnings(), torch.no_grad():
                warnings.filterwarnings("ignore", ".*torch.jit.*deprecated", FutureWarning)
                # Tracing notes that the mean is a constant, which is meant. We compare, so it does not have to.
                warnings.filterwarnings("ignore", category=torch.jit.TracerWarning)
                traced = torch.jit.trace(model, example, check_trace=False)
                torch.jit.save(traced, str(path), _extra_files=about)
    except (RuntimeError, TypeError, ValueError) as error:  # the bases of what the three exporters raise
        raise InputError(f"the network cannot be exported as {kind}: {first_line(error)}") from error


def _write_onnx(model: Deployed, example: Tensor, path: Path, names: dict[int, str], about: dict[str, str]) -> None:
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise InputError(f"{error}; the ONNX format needs pip install onnx onnxscript onnxruntime") from None
    program: Any = torch.onnx.export(
        model,
        (example,),
        dynamo=True,
        input_names=["images"],
        output_names=["probabilities"],
        dynamic_shapes={"images": names},
        verbose=False,
    )
    program.model.metadata_props.update(about)
    program.save(str(path))


def metadata(classifier: Classifier, dynamic_size: bool) -> dict[str, str]:
    """What a program needs beside the graph, as JSON texts by name; all three formats carry the same."""
    size = classifier.preprocessing.size
    values = {
        "class_names": list(classifier.class_names),
        "preprocessing": classifier.preprocessing.to_dict(),
        "task": classifier.task,
        "input": ["batch", 3, "height" if dynamic_size else size, "width" if dynamic_size else size],
        "template_version": __version__,
    }
    return {name: json.dumps(value, ensure_ascii=False) for name, value in values.items()}


def load(kind: Format, path: Path) -> Callable[[Tensor], Tensor]:
    """Open an exported file on the CPU: (B, 3, H, W) uint8 to (B, K) float32."""
    if kind == "onnx":
        import onnxruntime

        # One thread more or less changes timings: as many as torch has.
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        return lambda images: torch.from_numpy(session.run(None, {"images": images.numpy()})[0])
    if kind == "pt2":
        return torch.export.load(path).module()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*torch.jit.*deprecated", FutureWarning)
        return torch.jit.load(str(path))


def first_line(error: BaseException) -> str:
    """The first line of an error's text, or the name of its class where it has none."""
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
