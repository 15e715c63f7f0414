"""Batch norms become group norms, are shared or stay frozen, and are counted once: pytest tests/test_norms.py"""

import copy
import logging

import pytest
import torch
from torch import nn

from template.errors import InputError
from template.model.activation_checkpointing import checkpoint_activations
from template.model.module import Classifier
from template.model.network import build_network
from template.model.norms import batch_norms, groups_for, use_group_norms, use_synchronised_norms

IMAGES = torch.randn(6, 3, 16, 16, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("channels", "groups"), [(72, 24), (64, 32), (12, 12), (7, 7), (37, 1), (74, 2), (1, 1)])
def test_a_divisor_is_found_for_any_number_of_channels(channels, groups):
    assert groups_for(channels) == groups
    nn.GroupNorm(groups, channels)


def test_group_norms_keep_the_affine_weights_and_make_a_sample_independent_of_its_batch(caplog):
    caplog.set_level(logging.INFO)
    network = build_network("small", 5, width=6)
    for norm in batch_norms(network).values():
        nn.init.uniform_(norm.weight, 0.5, 2.0)
        nn.init.uniform_(norm.bias, -1.0, 1.0)
    before = {name: p.clone() for name, p in network.named_parameters()}
    use_group_norms(network)
    assert "6 batch norms became group norms" in caplog.text
    assert not batch_norms(network)
    after = dict(network.named_parameters())
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    together, alone = network.train()(IMAGES), torch.cat([network(image[None]) for image in IMAGES])
    assert (together - alone).abs().max() < 1e-6


def test_group_norms_take_the_affine_weights_of_a_checkpoint_with_batch_norms(tmp_path):
    trained = build_network("small", 2, width=6)
    for norm in batch_norms(trained).values():
        nn.init.uniform_(norm.weight, 0.5, 2.0)
    torch.save(trained.state_dict(), tmp_path / "batch.pt")
    module = Classifier(("a", "b"), width=6, norm="group", weights=tmp_path / "batch.pt")
    stored = trained.state_dict()
    assert all(torch.equal(p, stored[name]) for name, p in module.network.named_parameters())


def test_synchronised_norms_are_off_on_a_cpu_with_a_message(caplog):
    network = build_network("small", 2, width=4)
    assert not any(isinstance(m, nn.SyncBatchNorm) for m in use_synchronised_norms(network, "cpu", 2).modules())
    assert "torch does not have on a CPU" in caplog.text


def test_synchronised_norms_keep_every_name_and_value():
    network = build_network("small", 2, width=4)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    after = use_synchronised_norms(network, "cuda", 2)
    assert all(isinstance(norm, nn.SyncBatchNorm) for norm in batch_norms(after).values())
    assert before.keys() == after.state_dict().keys()
    assert all(torch.equal(before[name], tensor) for name, tensor in after.state_dict().items())


def backward(network: nn.Module) -> torch.Tensor:
    torch.manual_seed(0)
    logits = network(IMAGES)
    logits.square().sum().backward()
    return logits


@pytest.mark.parametrize("name", ["features", "features.3"])
def test_checkpointed_activations_change_no_bit_and_count_batch_statistics_once(name):
    plain = build_network("small", 5, width=6, dropout=0.5)
    cheap = copy.deepcopy(plain)
    checkpoint_activations(cheap, [name])
    assert torch.equal(backward(plain), backward(cheap))
    for (parameter, tensor), other in zip(plain.named_parameters(), cheap.parameters(), strict=True):
        assert torch.equal(tensor.grad, other.grad), parameter  # type: ignore[arg-type]
    for (key, tensor), (other_key, other) in zip(plain.state_dict().items(), cheap.state_dict().items(), strict=True):
        assert key == other_key
        assert torch.equal(tensor, other), key
    assert all(int(norm.num_batches_tracked) == 1 for norm in batch_norms(cheap).values())  # type: ignore[arg-type]


def test_a_checkpointed_batch_norm_moves_its_mean_by_the_momentum_once():
    norm = nn.BatchNorm2d(3, momentum=0.1)
    network = nn.Sequential(nn.Sequential(norm), nn.Flatten())
    checkpoint_activations(network, ["0"])
    network(IMAGES.clone().requires_grad_()).square().sum().backward()
    assert norm.running_mean is not None
    assert (norm.running_mean - 0.1 * IMAGES.mean((0, 2, 3))).abs().max() < 1e-7
    assert norm.track_running_stats


def test_checkpointed_activations_keep_fewer_tensors_for_the_backward_pass():
    def kept(names: list[str]) -> int:
        network = build_network("small", 5, width=6)
        checkpoint_activations(network, names)
        sizes: list[int] = []

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            sizes.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            network(IMAGES)
        return sum(sizes)

    assert kept(["features"]) < 0.1 * kept([])


def test_a_copy_of_a_checkpointed_network_is_bound_to_its_own_weights():
    network = build_network("small", 5, width=6)
    checkpoint_activations(network, ["features"])
    other = copy.deepcopy(network)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
    assert backward(other).abs().max() > 0


def test_a_part_that_is_not_there_names_the_nearest():
    with pytest.raises(InputError, match="did you mean 'features'"):
        checkpoint_activations(build_network("small", 5), ["feature"])
