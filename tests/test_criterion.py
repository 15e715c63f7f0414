"""Losses are of each sample, in float32, and what is ignored weighs nothing: pytest tests/test_criterion.py"""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torchvision.ops import sigmoid_focal_loss

from template.data.transforms import Augmentation, DeviceTransform, Preprocessing
from template.model.criterion import IGNORED, BinaryCrossEntropy, CrossEntropy, balanced_weights

LOGITS = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
TARGETS = torch.tensor([0, 3, 1, 1, 2])
LABELS = (torch.randn(5, 4, generator=torch.Generator().manual_seed(1)) > 0).float()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_losses_are_float32_and_finite_whatever_the_precision(dtype):
    huge = torch.full((3, 1000), -3e4, dtype=dtype)
    huge[:, 0] = 3e4
    loss = CrossEntropy()(huge, torch.tensor([0, 1, 999]))["loss"]
    assert loss.dtype == torch.float32
    assert loss.tolist() == pytest.approx([0.0, 6e4, 6e4], rel=4e-3)
    loss = BinaryCrossEntropy()(huge, torch.zeros(3, 1000, dtype=dtype))["loss"]
    assert loss.dtype == torch.float32
    assert loss.tolist() == pytest.approx([30.0] * 3, rel=4e-3)


def test_losses_are_float32_under_autocast_too():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert CrossEntropy(focal_gamma=2.0)(LOGITS.bfloat16(), TARGETS)["loss"].dtype == torch.float32


def test_a_batch_whose_targets_are_all_ignored_has_loss_0_and_gradient_0():
    for criterion in (CrossEntropy(), CrossEntropy(label_smoothing=0.1, class_weights=[1, 2, 3, 4], focal_gamma=2.0)):
        logits = LOGITS.clone().requires_grad_()
        loss = criterion(logits, torch.full((5,), IGNORED))["loss"]
        loss.sum().backward()
        assert loss.tolist() == [0.0] * 5
        assert logits.grad is not None
        assert int(logits.grad.count_nonzero()) == 0


def test_the_loss_of_a_sample_does_not_depend_on_its_batch():
    for criterion in (CrossEntropy(0.1, [1, 2, 3, 4], 1.5), CrossEntropy()):
        alone = [criterion(LOGITS[i : i + 1], TARGETS[i : i + 1])["loss"] for i in range(5)]
        assert torch.allclose(criterion(LOGITS, TARGETS)["loss"], torch.cat(alone), rtol=0, atol=1e-6)


def test_soft_targets_that_are_hard_give_the_loss_of_hard_ones():
    soft = F.one_hot(TARGETS, 4).float()
    for criterion in (CrossEntropy(0.1), CrossEntropy(focal_gamma=2.0), CrossEntropy(0.0, [1.0, 2.0, 3.0, 4.0])):
        assert torch.allclose(criterion(LOGITS, soft)["loss"], criterion(LOGITS, TARGETS)["loss"], rtol=0, atol=1e-6)


def test_the_loss_of_mixed_targets_is_the_mixture_of_the_losses():
    images, keys = torch.zeros(5, 3, 8, 8, dtype=torch.uint8), torch.tensor([(0, i) for i in range(5)])
    mix = DeviceTransform(Preprocessing(size=8), Augmentation(mixup=1.0), 4, 0)
    soft = mix(images, TARGETS, keys)[1]
    share = soft.gather(1, TARGETS[:, None])[:, 0].where(TARGETS.roll(-1) != TARGETS, torch.ones(5))
    one, other = (CrossEntropy()(LOGITS, targets)["loss"] for targets in (TARGETS, TARGETS.roll(-1)))
    assert torch.allclose(CrossEntropy()(LOGITS, soft)["loss"], share * one + (1 - share) * other, rtol=0, atol=1e-6)


def test_focal_loss_is_cross_entropy_times_a_power_of_what_is_missing():
    p = LOGITS.softmax(1).gather(1, TARGETS[:, None])[:, 0]
    expected = -((1 - p) ** 2) * p.log()
    assert torch.allclose(CrossEntropy(focal_gamma=2.0)(LOGITS, TARGETS)["loss"], expected, rtol=0, atol=1e-6)


def test_focal_loss_of_labels_is_torchvisions():
    expected = sigmoid_focal_loss(LOGITS, LABELS, alpha=-1, gamma=2.0).mean(1)
    assert torch.allclose(BinaryCrossEntropy(focal_gamma=2.0)(LOGITS, LABELS)["loss"], expected, rtol=0, atol=1e-6)


def test_a_focal_power_below_1_has_a_finite_gradient_where_the_network_is_sure():
    logits = torch.tensor([[200.0, 0.0, 0.0, 0.0]], requires_grad=True)
    CrossEntropy(focal_gamma=0.5)(logits, torch.tensor([0]))["loss"].sum().backward()
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()


def test_positive_weights_multiply_where_a_class_is_present():
    loss = BinaryCrossEntropy([3.0, 1.0])(torch.zeros(2, 2), torch.tensor([[1.0, 0.0], [0.0, 0.0]]))["loss"]
    assert loss.tolist() == pytest.approx([math.log(2) * (3 + 1) / 2, math.log(2)])


def test_balanced_weights_give_every_class_the_same_weight_in_total():
    counts = np.array([90, 9, 1])
    weights = balanced_weights(counts, 100, "multiclass")
    assert counts * weights == pytest.approx([100 / 3] * 3)
    assert balanced_weights(np.array([20, 50]), 100, "multilabel") == [4.0, 1.0]
