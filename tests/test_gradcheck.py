"""How to check a gradient of your own, with an example to copy: pytest tests/test_gradcheck.py

``gradcheck`` compares what ``backward`` returns with finite differences, so the inputs are float64, a handful of
numbers, and away from where the function has a kink.
"""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import Function, gradcheck, gradgradcheck
from torch.autograd.function import once_differentiable
from torch.autograd.gradcheck import GradcheckError

from template.model.criterion import BinaryCrossEntropy, CrossEntropy


class GatedProduct(Function):
    """x * sigmoid(y), which keeps its inputs and not the gate: an example of a function with two gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(x, y)
        return x * y.sigmoid()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        (grad,), (x, y) = grad_outputs, ctx.saved_tensors
        gate = y.sigmoid()
        return grad * gate, grad * x * gate * (1 - gate)  # in the order of forward's arguments


class Swapped(GatedProduct):
    """The mistake: the gradients in another order than the arguments. They have one shape, so nothing else notices."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        grad_x, grad_y = GatedProduct.backward(ctx, *grad_outputs)
        return grad_y, grad_x


def inputs(*shapes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_() for shape in shapes]


def test_the_gradients_are_those_of_finite_differences_and_so_are_the_second_ones():
    assert gradcheck(GatedProduct.apply, inputs((3, 2), (3, 2)))
    assert gradgradcheck(GatedProduct.apply, inputs((3, 2), (3, 2)))


def test_gradients_in_the_wrong_order_are_found():
    with pytest.raises(GradcheckError, match="Jacobian mismatch"):
        gradcheck(Swapped.apply, inputs((3, 2), (3, 2)))


@pytest.mark.parametrize(
    "criterion", [CrossEntropy(0.1, [1.0, 2.0, 0.5], 1.5), BinaryCrossEntropy([1.0, 2.0, 0.5], 2.0)]
)
def test_the_losses_have_the_gradients_of_finite_differences(criterion, monkeypatch):
    monkeypatch.setattr(Tensor, "float", Tensor.double)  # they compute in float32, too coarse for a difference quotient
    criterion.double()
    targets = torch.tensor([0, 2, 1]) if isinstance(criterion, CrossEntropy) else torch.eye(3).double()
    assert gradcheck(lambda logits: criterion(logits, targets)["loss"], inputs((3, 3)))
