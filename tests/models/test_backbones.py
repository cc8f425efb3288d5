"""Backbones: shapes, stems, names and weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file

from models.backbones import build_backbone, load_weights

SHAPES = [(3, 32, 32), (1, 8, 8), (3, 28, 28), (1, 5, 7)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", ["small_cnn", "small_cnn_wide", "conv4", "conv4_narrow", "mlp", "linear"])
def test_features_have_the_announced_width(name: str, shape: tuple[int, ...]) -> None:
    backbone = build_backbone(name, shape)
    features = backbone(torch.randn(2, *shape, requires_grad=True))
    assert features.shape == (2, backbone.num_features)
    features.sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in backbone.parameters() if p.grad is not None)


@pytest.mark.parametrize(
    ("name", "size", "width"), [("conv4", 28, 64), ("conv4", 84, 1600), ("conv4_narrow", 28, 32), ("conv4", 8, 64)]
)
def test_conv4_has_the_published_number_of_features(name: str, size: int, width: int) -> None:
    """Prototypical networks and the meta-learning papers after them: M = 64 on Omniglot, 1,600 on miniImageNet."""
    backbone = build_backbone(name, (3, size, size))
    assert backbone.num_features == width
    kinds = [type(layer).__name__ for layer in backbone.body]
    assert kinds[:4] == ["Conv2d", "BatchNorm2d", "ReLU", "MaxPool2d"] and kinds.count("Conv2d") == 4


def test_mlp_takes_feature_vectors_and_others_say_so() -> None:
    assert build_backbone("mlp", (12,))(torch.randn(3, 12)).shape == (3, 128)
    assert build_backbone("mlp", (1000,))(torch.randn(3, 1000)).shape == (3, 128)
    with pytest.raises(ValueError, match="use backbone 'mlp' or 'linear'"):
        build_backbone("small_cnn", (12,))


def test_linear_passes_features_on_as_they_are() -> None:
    x = torch.randn(3, 1000)
    backbone = build_backbone("linear", (1000,))
    assert torch.equal(backbone(x), x) and not list(backbone.parameters())
    images = torch.randn(2, 3, 4, 4)
    assert torch.equal(build_backbone("linear", (3, 4, 4))(images), images.flatten(1))


@pytest.mark.parametrize(
    ("name", "channels"), [("small_cnn", 128), ("small_cnn_wide", 256), ("resnet18", 512), ("efficientnet_b0", 1280)]
)
def test_the_input_of_the_pooling_layer_is_the_last_feature_map(name: str, channels: int) -> None:
    backbone = build_backbone(name, (3, 32, 32)).eval()
    layer, seen = backbone.pooling_layer(), []
    assert layer is not None
    layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    features = backbone(torch.randn(2, 3, 32, 32))
    assert [map_.shape[:2] for map_ in seen] == [(2, channels)] and seen[0].ndim == 4
    (gradient,) = torch.autograd.grad(features.sum(), seen[0])
    assert gradient.shape == seen[0].shape


@pytest.mark.parametrize("name", ["mlp", "linear", "conv4", "vit_tiny_patch16_224", "swin_tiny_patch4_window7_224"])
def test_networks_without_a_map_of_channels_first_have_no_pooling_layer(name: str) -> None:
    assert build_backbone(name, (3, 224, 224)).pooling_layer() is None


def test_one_item_in_evaluation_is_the_same_as_in_a_batch() -> None:
    # checks.md 22: a last batch of one item must work wherever nothing is trained.
    backbone = build_backbone("small_cnn", (3, 32, 32)).eval()
    x = torch.randn(4, 3, 32, 32)
    torch.testing.assert_close(backbone(x)[:1], backbone(x[:1]), rtol=1e-4, atol=1e-5)


def test_memory_layout_of_the_input_changes_nothing() -> None:
    backbone = build_backbone("small_cnn", (3, 32, 32)).eval()
    x = torch.randn(2, 3, 32, 32)
    assert torch.equal(backbone(x), backbone(x.contiguous(memory_format=torch.channels_last)))


def test_resnet_gets_the_cifar_stem() -> None:
    backbone = build_backbone("timm/resnet18", (3, 32, 32))
    body = backbone.body
    assert body.conv1.kernel_size == (3, 3) and body.conv1.stride == (1, 1)
    assert isinstance(body.maxpool, torch.nn.Identity)
    assert body.forward_features(torch.randn(1, 3, 32, 32)).shape[-2:] == (4, 4)
    assert backbone(torch.randn(2, 3, 32, 32)).shape == (2, 512)


def test_large_images_keep_timms_stem() -> None:
    assert build_backbone("resnet18", (3, 96, 96)).body.conv1.stride == (2, 2)


def test_efficientnet_stem_does_not_shrink_small_images() -> None:
    body = build_backbone("efficientnet_b0", (3, 32, 32)).body
    assert body.conv_stem.stride == (1, 1)
    assert body.forward_features(torch.randn(1, 3, 32, 32)).shape[-2:] == (2, 2)


def test_unknown_names_list_near_ones() -> None:
    with pytest.raises(ValueError, match="resnet18"):
        build_backbone("resnet_18", (3, 32, 32))
    with pytest.raises(ValueError, match="small_cnn"):
        build_backbone("smal_cnn", (3, 32, 32))


def test_pretrained_without_weights_names_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    # checks.md 25 (pytorch-image-models#1825, #2338): loading offline failed without saying what is missing.
    def offline(*args: object, pretrained: bool, **kwargs: object) -> None:
        raise OSError("offline")

    monkeypatch.setattr(timm, "create_model", offline)
    with pytest.raises(FileNotFoundError, match=r"model\.safetensors.*timm/resnet18"):
        build_backbone("resnet18", (3, 32, 32), pretrained=True)
    with pytest.raises(ValueError, match="no pretrained weights"):
        build_backbone("small_cnn", (3, 32, 32), pretrained=True)


def test_pretrained_without_a_network_ends_at_once_and_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the same with timm's and the hub's own code, as HF_HUB_OFFLINE=1 and an empty cache have it
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"model\.safetensors.*timm/resnet18"):
        build_backbone("resnet18", (3, 32, 32), pretrained=True)


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_local_weights_load_without_the_replaced_stem(tmp_path: Path, suffix: str) -> None:
    source = timm.create_model("resnet18", num_classes=10)
    path = tmp_path / f"weights{suffix}"
    state = {key: value.contiguous() for key, value in source.state_dict().items()}
    save_file(state, path) if suffix == ".safetensors" else torch.save(state, path)
    backbone = build_backbone("resnet18", (3, 32, 32), pretrained=str(path))
    assert torch.equal(backbone.body.layer1[0].conv1.weight, source.layer1[0].conv1.weight)
    # checks.md 24: how many tensors were matched is known: all but the head's two and the stem's one
    assert load_weights(backbone.body, path) == len(state) - 3


def test_weights_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.pt"
    torch.save({"something": torch.zeros(3)}, path)
    with pytest.raises(ValueError, match="none of its 1 tensors"):
        build_backbone("resnet18", (3, 32, 32), pretrained=str(path))
    with pytest.raises(FileNotFoundError, match="no file .*absent.pt with pretrained weights"):
        build_backbone("resnet18", (3, 32, 32), pretrained=str(tmp_path / "absent.pt"))
