"""Every network gets a head for K classes, keeps its memory layout and learns everywhere: tests/test_network.py"""

import itertools
import logging
from collections.abc import Iterable

import pytest
import torch
from torch import Tensor, nn
from torchvision import models

from template.errors import InputError
from template.model.module import Classifier
from template.model.network import build_network, head_name, load_weights
from template.model.norms import use_group_norms
from template.model.optimizer import layers, parameter_groups

#: The smallest of each family that torchvision has.
FAMILIES = {
    "alexnet": 224,
    "convnext_tiny": 64,
    "densenet121": 64,
    "efficientnet_b0": 64,
    "googlenet": 64,
    "inception_v3": 96,
    "maxvit_t": 224,
    "mnasnet0_5": 64,
    "mobilenet_v2": 64,
    "mobilenet_v3_small": 64,
    "regnet_x_400mf": 64,
    "resnet18": 64,
    "resnext50_32x4d": 64,
    "shufflenet_v2_x0_5": 64,
    "squeezenet1_1": 64,
    "swin_t": 64,
    "vgg11": 64,
    "vit_b_32": 224,
}


def test_the_families_are_those_of_torchvision():
    def families(names: Iterable[str]) -> set[str]:
        return {"".join(itertools.takewhile(str.isalpha, name.removeprefix("wide_"))) for name in names}

    assert families(models.list_models(module=models)) == families(FAMILIES)


@pytest.mark.parametrize(("name", "side"), FAMILIES.items())
def test_a_network_of_torchvision_gets_a_head_for_k_classes_and_a_gradient_for_every_parameter(name, side):
    # on meta tensors nothing is computed; RegNet reads a value when it is built
    with torch.device("cpu" if name.startswith("regnet") else "meta"):
        network = build_network(name, 7)
        logits = network(torch.empty(2, 3, side, side))
        logits.sum().backward()
    assert logits.shape == (2, 7)
    assert [name for name, parameter in network.named_parameters() if parameter.grad is None] == []


def test_the_head_of_another_size_is_replaced_and_the_log_says_so(caplog):
    caplog.set_level(logging.INFO)
    with torch.device("meta"):
        assert build_network("resnet18", 7).get_submodule("fc").weight.shape == (7, 512)
    assert "head fc: 1000 classes replaced by 7" in caplog.text


def test_pretrained_weights_that_cannot_be_downloaded_are_an_error_with_the_place_to_put_them(monkeypatch):
    def refuse(*args, **kwargs):
        raise OSError("no route to host")

    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", refuse)
    with pytest.raises(InputError, match=r"resnet18 could not be downloaded \(no route to host\).*checkpoints/"):
        build_network("resnet18", 7, pretrained=True)


def test_pretrained_weights_reach_all_but_the_head(monkeypatch):
    stored = models.resnet18().state_dict()
    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", lambda *args, **kwargs: stored)
    own = build_network("resnet18", 7, pretrained=True).state_dict()
    assert {name for name in own if not torch.equal(own[name], stored[name])} == {"fc.weight", "fc.bias"}


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(InputError, match="did you mean 'resnet18'"):
        build_network("resnet_18", 7)


def test_a_small_stem_keeps_the_resolution_of_a_resnet():
    with torch.device("meta"):
        network = build_network("resnet18", 7, stem="small")
        seen = []
        network.get_submodule("layer1").register_forward_pre_hook(
            lambda module, inputs: seen.append(inputs[0].shape[-2:])
        )
        network(torch.empty(1, 3, 32, 32))
    assert seen == [(32, 32)]
    with pytest.raises(InputError, match="for ResNets"), torch.device("meta"):
        build_network("vgg11", 7, stem="small")


def dropping_layers(network: nn.Module) -> list[str]:
    """Names of leaf layers whose output is of four dimensions and not in channels_last memory."""
    found = []

    def look(name: str):
        def hook(module: nn.Module, inputs: object, output: Tensor) -> None:
            if output.ndim == 4 and not output.is_contiguous(memory_format=torch.channels_last):
                found.append(name)

        return hook

    for name, module in network.named_modules():
        if not [*module.children()]:
            module.register_forward_hook(look(name))
    images = torch.randn(2, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    network(images)
    return found


@pytest.mark.parametrize(("name", "norm"), [("small", "batch"), ("small", "group"), ("resnet18", "batch")])
def test_no_layer_drops_channels_last(name, norm):
    network = build_network(name, 7, width=6)
    if norm == "group":
        use_group_norms(network)
    assert dropping_layers(network) == []


def test_a_layer_that_drops_channels_last_is_seen():
    class Drops(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.contiguous()

    assert dropping_layers(nn.Sequential(nn.Conv2d(3, 4, 3), Drops())) == ["1"]


def test_norms_and_biases_do_not_decay_unless_asked_to():
    network = build_network("small", 7, width=4)
    decayed, plain = parameter_groups(network, 0.1, 0.05)
    assert (decayed["weight_decay"], plain["weight_decay"]) == (0.05, 0.0)
    assert {p.ndim for p in decayed["params"]} == {2, 4}
    assert {p.ndim for p in plain["params"]} == {1}
    assert len(decayed["params"]) + len(plain["params"]) == len([*network.parameters()])
    (group,) = parameter_groups(network, 0.1, 0.05, decay_norms_and_biases=True)
    assert len(group["params"]) == len([*network.parameters()])


def test_layers_go_from_the_images_to_the_logits_and_hold_every_parameter_once():
    with torch.device("meta"):
        network = build_network("resnet18", 7)
    names = {id(p): name for name, p in network.named_parameters()}
    firsts = [names[id(layer[0])] for layer in layers(network)]
    starts = ["conv1", "bn1", "layer1", "layer2", "layer3", "layer4.0", "layer4.1", "fc"]
    assert [name for name, start in zip(firsts, starts, strict=True) if not name.startswith(start)] == []
    assert sorted(id(p) for layer in layers(network) for p in layer) == sorted(names)


def test_each_layer_further_from_the_logits_learns_slower_by_the_same_factor():
    with torch.device("meta"):
        network = build_network("resnet18", 7)
    groups = parameter_groups(network, 0.1, 0.05, layer_decay=0.5)
    rates = {id(p): group["lr"] for group in groups for p in group["params"]}
    assert rates[id(network.get_parameter("fc.weight"))] == 0.1
    assert rates[id(network.get_parameter("layer4.1.conv1.weight"))] == pytest.approx(0.1 * 0.5)
    assert rates[id(network.get_parameter("conv1.weight"))] == pytest.approx(0.1 * 0.5**7)


def test_optimizer_options_reach_the_optimizer_and_unknown_ones_name_the_nearest():
    module = Classifier(("a", "b"), width=4, optimizer_options={"betas": [0.8, 0.9], "eps": 1e-5}, learning_rate=0.2)
    optimizer = module.configure_optimizers()
    assert {(*group["betas"], group["eps"], group["lr"]) for group in optimizer.param_groups} == {(0.8, 0.9, 1e-5, 0.2)}
    with pytest.raises(InputError, match="did you mean 'betas'"):
        Classifier(("a", "b"), optimizer_options={"beta": [0.8, 0.9]})
    with pytest.raises(InputError, match=r"optimizer_options has 'lr'; set model\.learning_rate instead"):
        Classifier(("a", "b"), optimizer_options={"lr": 1.0})
    with pytest.raises(InputError, match="did you mean 'AdamW'"):
        Classifier(("a", "b"), optimizer="Adamw_")


def test_weights_of_other_classes_are_taken_but_for_the_head(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    six, ten = build_network("small", 6, width=4), build_network("small", 10, width=4)
    torch.save(six.state_dict(), tmp_path / "six.pt")
    load_weights(ten, tmp_path / "six.pt")
    different = {name for name, tensor in ten.state_dict().items() if not torch.equal(tensor, six.state_dict()[name])}
    assert different == {"head.weight", "head.bias"}
    assert "2 of another shape, left as initialised: head.weight [6, 16], head.bias [6]" in caplog.text


def test_a_network_of_timm_gets_a_head_for_k_classes():
    pytest.importorskip("timm")
    with torch.device("meta"):
        network = build_network("timm:resnet10t", 7)
        assert network(torch.empty(1, 3, 64, 64)).shape == (1, 7)
    assert head_name(network) == "fc"
    with pytest.raises(InputError, match="did you mean 'resnet10t'"):
        build_network("timm:resnet_10t", 7)


def test_timm_missing_names_the_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "timm", None)
    with pytest.raises(InputError, match=r"pip install -e '\.\[timm\]'"):
        build_network("timm:resnet10t", 7)
