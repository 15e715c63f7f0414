"""Labels that the task cannot have are refused before the first step, by split, value, count and file."""

import math
from pathlib import Path

import numpy as np
import pytest

from template.checks.labels import check_labels, check_targets, guessing_loss
from template.data.index import Index
from template.data.packed import PackedStrings
from template.errors import InputError
from template.model.criterion import BinaryCrossEntropy, CrossEntropy


def index(targets: list, classes: int = 3, dtype: str = "int64") -> Index:
    paths = PackedStrings(f"img{row}.png" for row in range(len(targets)))
    return Index(Path("root"), paths, np.array(targets, dtype=dtype), tuple("abcdef"[:classes]))


def refusal(targets: list, task: str = "multiclass", classes: int = 3, dtype: str = "int64") -> str:
    with pytest.raises(InputError) as error:
        check_labels({"train": index([0, 1, 2]), "val": index(targets, classes, dtype)}, task)  # type: ignore[arg-type]
    return str(error.value)


def test_labels_from_one_are_refused_with_the_value_its_rows_its_first_file_and_the_likely_cause():
    text = refusal([1, 2, 3, 2, 3])
    assert text.startswith("val labels must be in [0, 2]; found 3 in 2 row(s), first img2.png")
    assert "do they start at 1?" in text


def test_a_negative_label_is_refused_without_the_hint_about_starting_at_one():
    text = refusal([0, 1, -1])
    assert text == "val labels must be in [0, 2]; found -1 in 1 row(s), first img2.png"


def test_wrong_values_of_two_kinds_are_both_counted():
    assert "found 7 in 2 row(s), first img1.png, and 1 other wrong value(s)" in refusal([0, 7, 7, -1])


@pytest.mark.parametrize(
    ("targets", "dtype", "expected"),
    [
        ([0.0, 1.0, 2.0], "float32", "val labels are float32; multiclass expects class numbers of an integer type"),
        ([[0], [1]], "int64", "val labels have shape (2, 1); multiclass expects (N,), one class number an image"),
    ],
)
def test_a_wrong_type_or_shape_is_named(targets, dtype, expected):
    assert refusal(targets, dtype=dtype) == expected


def test_multi_label_targets_with_a_softmax_loss_name_the_task_to_set():
    assert "--model.task multilabel" in refusal([[0, 1, 1], [1, 0, 0]])
    with pytest.raises(InputError, match=r"--model.task multiclass"):
        check_labels({"train": index([0, 1, 2])}, "multilabel")


def test_a_multi_label_two_is_refused_by_name_and_row():
    with pytest.raises(InputError) as error:
        check_labels({"train": index([[0, 1, 1], [1, 0, 2]], dtype="uint8")}, "multilabel")
    assert str(error.value) == ("train labels must be 0 or 1 for each class; found 2 in 1 row(s), first img1.png")


def test_a_multi_label_nan_is_refused():
    with pytest.raises(InputError, match=r"found nan in 1 row\(s\), first b"):
        check_targets(np.array([[0, 1.0], [np.nan, 1]]), 2, "multilabel", ["a", "b"], "targets")


def test_right_labels_pass_in_any_integer_type_and_as_a_single_multi_label_row():
    check_labels({"train": index([0, 1, 2], dtype="uint8")}, "multiclass")
    check_labels({"train": index([[1, 0, 1]], dtype="uint8")}, "multilabel")
    check_targets(np.array([[0.3, 0.7]]), 2, "multiclass", ["a"], "targets", mixed=True)


def best_constant(criterion, targets, classes: int) -> float:
    """The lowest mean loss of one constant answer, found by descent."""
    import torch

    logits = torch.zeros(classes, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([logits], max_iter=200, tolerance_grad=1e-9)

    def closure():
        optimizer.zero_grad()
        loss = criterion(logits.expand(len(targets), -1), targets)["loss"].mean()
        loss.backward()
        return loss

    optimizer.step(closure)
    return closure().item()


def test_the_loss_of_guessing_is_the_lowest_that_a_constant_answer_reaches():
    import torch

    targets = torch.tensor([0] * 6 + [1] * 3 + [2])
    weights = [1.0, 2.0, 5.0]
    found = guessing_loss(np.array([0.6, 0.3, 0.1]), "multiclass", 0.1, weights)
    assert found == pytest.approx(best_constant(CrossEntropy(0.1, weights), targets, 3), abs=1e-5)
    many = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 0.0]])
    found = guessing_loss(np.array([0.75, 0.25]), "multilabel", 0.0, [1.0, 3.0])
    assert found == pytest.approx(best_constant(BinaryCrossEntropy([1.0, 3.0]), many, 2), abs=1e-5)
    assert guessing_loss(np.full(10, 0.1), "multiclass") == pytest.approx(math.log(10))
