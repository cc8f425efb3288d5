"""Probes of two trained methods, against closed forms, hand-made networks and another library."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from benchmark.evaluate import pairs
from benchmark.evaluate.pairs import (
    barrier_of,
    cka,
    gradcam,
    gradcam_similarity,
    linear_cka,
    loss_barrier,
    map_similarity,
)
from benchmark.metrics import SoftNLL
from datamodules.annotations import Annotations
from datamodules.base import CrowdData, CrowdDataModule, DataInfo
from datamodules.digits import Digits
from models.base import CrowdModule

IMAGES = DataInfo(10, 60, (1, 8, 8))


class VotedDigits(Digits):
    """Digits with three votes on every test item, two for its class and one for the next."""

    def load(self) -> CrowdData:
        data = super().load()
        assert data.test_labels is not None
        labels = data.test_labels.repeat_interleave(3)
        labels[::3] = (labels[::3] + 1) % 10
        items = torch.arange(len(data.test_x)).repeat_interleave(3)
        votes = Annotations(items, torch.arange(3).repeat(len(data.test_x)), labels, len(data.test_x), 3, 10)
        return replace(data, test_annotations=votes)


class Bare(CrowdModule):
    """A method that predicts, and has nothing to probe."""

    def __init__(self, data_info: DataInfo = IMAGES) -> None:
        super().__init__(data_info)
        self.layer = nn.Linear(64, 10)

    def predict_consensus(self, x: Tensor) -> Tensor:
        return self.layer(x.flatten(1)).log_softmax(-1)


class Mlp(CrowdModule):
    def __init__(self, seed: int = 0, *middle: nn.Module) -> None:
        super().__init__(IMAGES)
        torch.manual_seed(seed)
        self.hidden = nn.Linear(64, 32)
        self.middle = nn.Sequential(*middle)
        self.out = nn.Linear(32, 10)

    def embed(self, x: Tensor) -> Tensor:
        return self.middle(self.hidden(x.flatten(1))).relu()

    def class_logits(self, x: Tensor) -> Tensor:
        return self.out(self.embed(x))

    def predict_consensus(self, x: Tensor) -> Tensor:
        return self.class_logits(x).log_softmax(-1)


class Cnn(CrowdModule):
    def __init__(self, seed: int = 0, pool: int = 2) -> None:
        super().__init__(IMAGES)
        torch.manual_seed(seed)
        self.body = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(pool)
        )
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.out = nn.Linear(8, 10)

    def class_logits(self, x: Tensor) -> Tensor:
        return self.out(self.pool(self.body(x)).flatten(1))

    def predict_consensus(self, x: Tensor) -> Tensor:
        return self.class_logits(x).log_softmax(-1)

    def pooling_layer(self) -> nn.Module:
        return self.pool


@pytest.fixture(scope="module")
def data() -> CrowdDataModule:
    datamodule = VotedDigits("aggre")
    datamodule.setup()
    return datamodule


def trained(method: CrowdModule, data: CrowdDataModule, steps: int = 40) -> CrowdModule:
    optimiser = torch.optim.Adam(method.parameters(), 0.01)
    method.train()
    for _, batch in zip(range(steps), [*data.train_dataloader()] * 5, strict=False):
        logits = method.class_logits(batch["x"])
        assert logits is not None
        optimiser.zero_grad()
        nn.functional.cross_entropy(logits, batch["aggregated"]).backward()
        optimiser.step()
    return method.eval()


def permuted(method: Mlp) -> Mlp:
    """The same function with the hidden neurons in reverse order."""
    other = Mlp()
    state = method.state_dict()
    state["hidden.weight"], state["hidden.bias"] = state["hidden.weight"].flip(0), state["hidden.bias"].flip(0)
    state["out.weight"] = state["out.weight"].flip(1)
    other.load_state_dict(state)
    return other


@contextmanager
def left_as_it_was(method: nn.Module) -> Iterator[None]:
    state = {name: value.clone() for name, value in method.state_dict().items()}
    modes = [module.training for module in method.modules()]
    momenta = [module.momentum for module in method.modules() if isinstance(module, nn.BatchNorm1d)]
    yield
    after = method.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in state.items())
    assert modes == [module.training for module in method.modules()]
    assert momenta == [module.momentum for module in method.modules() if isinstance(module, nn.BatchNorm1d)]


# --- loss barrier ---------------------------------------------------------------------------------


def test_a_network_and_itself_have_no_barrier_and_dropout_stays_off(data: CrowdDataModule) -> None:
    method = Mlp(0, nn.Dropout(0.5), nn.BatchNorm1d(32))  # before it: its statistics would be of another draw
    found = loss_barrier(method, method, data, points=5)
    assert found.value == 0
    assert len(found.losses) == 5 and len(set(found.losses)) == 1


def test_the_same_function_with_its_neurons_in_another_order_lies_behind_a_barrier(data: CrowdDataModule) -> None:
    first = trained(Mlp(), data)
    assert isinstance(first, Mlp)
    found = loss_barrier(first, permuted(first), data)
    assert len(found.losses) == 21
    assert found.losses[0] == pytest.approx(found.losses[-1], rel=1e-5)
    assert found.value is not None and found.value > 0.1
    assert found.value == pytest.approx(max(found.losses) - found.losses[0], rel=1e-4)


def test_the_ends_of_a_network_without_batch_norm_are_the_loss_of_the_methods(data: CrowdDataModule) -> None:
    first, second = Mlp(0), Mlp(1)
    found = loss_barrier(first, second, data, points=3)
    noted = data.data.test_annotations
    assert noted is not None
    for method, loss in ((first, found.losses[0]), (second, found.losses[-1])):
        metric = SoftNLL()
        for batch in data.test_dataloader():
            metric.update(method.predict_consensus(batch["x"]), noted.votes()[batch["index"]])
        assert float(metric.compute()) == pytest.approx(loss, rel=1e-6)


def test_batch_norm_statistics_are_those_of_the_point_and_not_the_stored_ones(data: CrowdDataModule) -> None:
    first, second = (trained(Mlp(seed, nn.BatchNorm1d(32)), data, steps=5) for seed in (0, 1))
    found = loss_barrier(first, second, data, points=3, batch_norm_items=200)
    for method in (first, second):
        for name, value in method.named_buffers():
            if name.endswith("running_var"):
                value.mul_(100)
    assert loss_barrier(first, second, data, points=3, batch_norm_items=200) == found
    # the middle by hand: one batch, so mean and unbiased variance of the middle network's own activations
    middle = Mlp(0, nn.BatchNorm1d(32))
    ends = (first.state_dict(), second.state_dict())
    middle.load_state_dict(
        {name: (ends[0][name] + ends[1][name]) / 2 if "num" not in name else ends[0][name] for name in ends[0]}
    )
    (batch,) = pairs._training_batches(first, data, 200)
    assert batch.shape == (200, 1, 8, 8)
    hidden = middle.hidden(batch.flatten(1)).detach()
    middle.middle[0].running_mean, middle.middle[0].running_var = hidden.mean(0), hidden.var(0)  # type: ignore[assignment]
    assert pairs._soft_nll(middle, data, pairs._test_votes(data)) == pytest.approx(found.losses[1], rel=1e-5)


def test_batches_for_batch_norm_have_one_size_and_lie_among_the_training_items(data: CrowdDataModule) -> None:
    batches = list(pairs._training_batches(Mlp(), data, 2000))
    assert {len(batch) for batch in batches} == {pairs.BATCH_NORM_BATCH}
    assert len(batches) == len(data.train_items) // pairs.BATCH_NORM_BATCH


def test_both_methods_are_left_as_they_were(data: CrowdDataModule) -> None:
    first, second = (Mlp(seed, nn.BatchNorm1d(32), nn.Dropout(0.1)).train() for seed in (0, 1))
    with left_as_it_was(first), left_as_it_was(second):
        loss_barrier(first, second, data, points=3)
        cka(first, second, data)
    first, second = Cnn(0).train(), Cnn(1).train()
    with left_as_it_was(first), left_as_it_was(second):
        gradcam_similarity(first, second, data, n_items=20)
        assert all(weight.grad is None for weight in first.parameters())


def test_an_interrupted_barrier_leaves_the_method_as_it_was(
    data: CrowdDataModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Ctrl-C within update_bn leaves momenta at None, in training mode and with the weights of the line
    def interrupted(sample: list[Tensor], model: nn.Module) -> None:
        model.train()
        for layer in pairs._batch_norms(model):
            layer.momentum = None
            layer.reset_running_stats()
        raise KeyboardInterrupt

    monkeypatch.setattr(pairs, "update_bn", interrupted)
    first = Mlp(0, nn.BatchNorm1d(32))
    with left_as_it_was(first), pytest.raises(KeyboardInterrupt):
        loss_barrier(first, Mlp(1, nn.BatchNorm1d(32)), data, points=3)


def test_what_has_no_line_or_no_votes_has_a_reason(data: CrowdDataModule) -> None:
    found = loss_barrier(Mlp(), Mlp(0, nn.BatchNorm1d(32)), data)
    assert found.value is None and "two different networks" in found.reason
    found = loss_barrier(Bare(), Bare(), data)
    assert found.value is None and found.reason == "Bare has no class logits (class_logits gives None)"
    plain = Digits("aggre")
    plain.setup()
    found = loss_barrier(Mlp(), Mlp(), plain)
    assert found.value is None and found.reason == "digits has no votes on its test items"
    with pytest.raises(ValueError, match="at least one point between"):
        loss_barrier(Mlp(), Mlp(), data, points=2)


def test_weights_that_are_not_finite_have_a_reason(data: CrowdDataModule) -> None:
    broken = Mlp()
    broken.out.bias.data.fill_(float("nan"))
    found = loss_barrier(Mlp(), broken, data, points=3)
    assert found.value is None and "NaN or infinite" in found.reason


@given(st.lists(st.floats(0, 10), min_size=3, max_size=12))
def test_the_barrier_is_the_largest_rise_above_the_chord(losses: list[float]) -> None:
    places = [place / (len(losses) - 1) for place in range(len(losses))]
    chord = [(1 - place) * losses[0] + place * losses[-1] for place in places]
    expected = max(loss - line for loss, line in zip(losses, chord, strict=True))
    assert barrier_of(losses) == pytest.approx(max(expected, 0), abs=1e-9)
    assert barrier_of(losses) >= 0


# --- CKA ------------------------------------------------------------------------------------------


def features(seed: int, width: int, n_items: int = 40) -> Tensor:
    return torch.randn(n_items, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(st.integers(0, 1000), st.integers(1, 8), st.floats(1e-3, 1e3))
def test_cka_ignores_rotation_scale_and_shift(seed: int, width: int, scale: float) -> None:
    x, y = features(seed, width), features(seed + 1, 5)
    rotation, _ = torch.linalg.qr(features(seed + 2, width, width))
    assert linear_cka(scale * x @ rotation + 3, y) == pytest.approx(linear_cka(x, y), rel=1e-9)
    assert linear_cka(x, x @ rotation) == pytest.approx(1)


@given(st.integers(0, 1000), st.integers(1, 60), st.integers(1, 8))
def test_cka_of_features_equals_the_form_of_centred_gram_matrices(seed: int, wide: int, narrow: int) -> None:
    x, y = features(seed, wide), features(seed + 1, narrow)
    centring = torch.eye(40, dtype=torch.float64) - 1 / 40
    k, g = centring @ x @ x.T @ centring, centring @ y @ y.T @ centring
    gram_form = float((k * g).sum() / ((k * k).sum() * (g * g).sum()).sqrt())
    assert linear_cka(x, y) == pytest.approx(gram_form, rel=1e-9)
    assert linear_cka(y, x) == pytest.approx(gram_form, rel=1e-9)
    assert 0 <= gram_form <= 1 + 1e-12


def test_cka_of_methods_reads_what_embed_gives_for_all_test_items(data: CrowdDataModule) -> None:
    first, second = Mlp(0), Mlp(1)
    x = torch.cat([batch["x"] for batch in data.test_dataloader()])
    assert cka(first, second, data).value == pytest.approx(linear_cka(first.embed(x), second.embed(x)), rel=1e-6)
    assert cka(first, first, data).value == pytest.approx(1)


def test_cka_without_features_or_with_constant_ones_has_a_reason(data: CrowdDataModule) -> None:
    assert cka(Mlp(), Bare(), data) == pairs.Probed(None, "Bare has no features to compare (embed gives None)")
    dead = Mlp()
    dead.hidden.weight.data.zero_()
    found = cka(Mlp(), dead, data)
    assert found.value is None and "the same for all test items" in found.reason
    constant = torch.full((7, 3), 0.1, dtype=torch.float64)  # whose mean differs from it by rounding
    assert linear_cka(constant, features(0, 2, 7)) != linear_cka(constant, features(0, 2, 7))
    with pytest.raises(ValueError, match=r"give \[N, D1\], \[N, D2\]"):
        linear_cka(torch.zeros(3, 2), torch.zeros(4, 2))


# --- Grad-CAM -------------------------------------------------------------------------------------


class Corner(CrowdModule):
    """Class 0 sees the upper left 2x2 places alone, class 1 the others, class 2 the image's negative."""

    def __init__(self) -> None:
        super().__init__(DataInfo(3, 1, (1, 8, 8)))
        self.split = nn.Identity()
        self.pool = nn.AdaptiveAvgPool2d(1)

    def class_logits(self, x: Tensor) -> Tensor:
        corner = torch.zeros_like(x)
        corner[..., :2, :2] = 1
        maps = torch.cat([x * corner, x * (1 - corner)], dim=1)
        seen = self.pool(maps).flatten(1)
        return torch.cat([seen, -seen.sum(1, keepdim=True)], dim=1)

    def predict_consensus(self, x: Tensor) -> Tensor:
        return self.class_logits(x).log_softmax(-1)

    def pooling_layer(self) -> nn.Module:
        return self.pool


def test_gradcam_lights_the_corner_that_the_class_depends_on_and_nothing_else() -> None:
    x = torch.rand(3, 1, 8, 8) + 0.5
    maps = gradcam(Corner(), x, torch.tensor([0, 1, 2]))
    assert maps.shape == (3, 8, 8)
    assert (maps[0, :2, :2] > 0).all() and int((maps[0] > 0).sum()) == 4
    assert (maps[1, :2, :2] == 0).all() and int((maps[1] > 0).sum()) == 60
    assert (maps[2] == 0).all()  # every place speaks against it, and ReLU keeps what speaks for a class
    # w_k is the mean over 64 places of a gradient of 1/64
    assert torch.allclose(maps[0, :2, :2], x[0, 0, :2, :2] / 64)


def test_gradcam_agrees_with_captum(data: CrowdDataModule) -> None:
    attr = pytest.importorskip("captum.attr")
    method = trained(Cnn(), data, steps=10)
    batch = next(iter(data.test_dataloader()))
    oracle = attr.LayerGradCam(method.class_logits, method.pooling_layer())
    expected = oracle.attribute(
        batch["x"], batch["target"], relu_attributions=True, attribute_to_layer_input=True
    ).squeeze(1)
    assert torch.allclose(gradcam(method, batch["x"], batch["target"]), expected, atol=1e-6)
    for weight in method.parameters():
        weight.requires_grad_(False)  # a frozen network has maps as well
    with torch.inference_mode():
        maps = gradcam(method, batch["x"], batch["target"])
    assert torch.allclose(maps, expected, atol=1e-6)


def test_gradcam_of_an_item_does_not_depend_on_its_batch(data: CrowdDataModule) -> None:
    method = Cnn().train()
    batch = next(iter(data.test_dataloader()))
    together = gradcam(method, batch["x"][:7], batch["target"][:7])
    alone = torch.cat([gradcam(method, batch["x"][i : i + 1], batch["target"][i : i + 1]) for i in range(7)])
    assert torch.allclose(together, alone, atol=1e-6)


def test_maps_that_are_zero_in_one_method_count_zero_and_in_both_are_left_out() -> None:
    some, none = torch.tensor([[[1.0, 2.0], [0.0, 0.0]]]), torch.zeros(1, 2, 2)
    first = torch.cat([some, some, none, none])
    second = torch.cat([1e-30 * some.double(), none, some, none])
    similarity = map_similarity(first.double(), second)
    assert similarity[:3].tolist() == pytest.approx([1, 0, 0])
    assert bool(similarity[3].isnan())


def test_similarity_of_a_method_with_itself_is_one_and_uses_the_items_asked_for(data: CrowdDataModule) -> None:
    method, other = trained(Cnn(), data), trained(Cnn(1), data)
    found = gradcam_similarity(method, method, data)
    assert found.value == pytest.approx(1)
    assert found.n_items + found.n_left_out == len(data.data.test_x)
    found = gradcam_similarity(method, other, data, n_items=501)  # a batch holds 500
    assert found.value is not None and 0 < found.value < 1
    assert found.n_items + found.n_left_out == 501
    assert found.value == pytest.approx(gradcam_similarity(other, method, data, n_items=501).value)


def test_methods_without_a_map_have_a_reason(data: CrowdDataModule) -> None:
    assert "no spatial feature map" in gradcam_similarity(Cnn(), Mlp(), data).reason
    assert "a single place" in gradcam_similarity(Cnn(0, pool=8), Cnn(1, pool=8), data).reason
    assert "(4, 4) and (2, 2)" in gradcam_similarity(Cnn(), Cnn(1, pool=4), data).reason
    dead = Cnn()
    dead.out.weight.data.zero_()
    found = gradcam_similarity(dead, dead, data)
    assert found.value is None and found.n_left_out == len(data.data.test_x)
    assert "zero everywhere in both" in found.reason


def test_vectors_have_no_maps(data: CrowdDataModule) -> None:
    vectors = VotedDigits("aggre")
    vectors._data = replace(
        data.data, x=data.data.x.float().flatten(1), test_x=data.data.test_x.float().flatten(1), mean=None, std=None
    )
    vectors.setup()
    assert gradcam_similarity(Mlp(), Mlp(), vectors).reason == "Grad-CAM needs images; the method is given vectors"
    assert cka(Mlp(), Mlp(), vectors).value == pytest.approx(1)
