"""The embedded data set: fixed test items, regimes made of one set of simulated labels, annotators who differ."""

from __future__ import annotations

import pytest
import torch
from sklearn.datasets import load_digits

from datamodules.digits import N_ANNOTATORS, Digits
from datamodules.regimes import REGIMES

SEEDS = range(8)


def _error(regime: str, seed: int) -> float:
    """Share of wrong single labels under a regime."""
    data = Digits(regime, annotation_seed=seed).data
    assert data.aggregated is not None and data.true_labels is not None
    return float((data.aggregated != data.true_labels).double().mean())


def _variance_ratio(kind: str, seed: int) -> float:
    """Variance of the annotators' error counts over the binomial one."""
    data = Digits("aggre", annotation_seed=seed, annotators=kind).data  # type: ignore[arg-type]
    noted = data.annotations
    assert data.true_labels is not None
    wrong = (noted.labels != data.true_labels[noted.items]).double()
    count = noted.labels_per_annotator().double()
    errors = torch.zeros(N_ANNOTATORS, dtype=torch.float64).index_add_(0, noted.annotators, wrong)
    rate = wrong.mean()
    return float(((errors - count * rate) ** 2 / (count * rate * (1 - rate)).clamp_min(1e-9)).mean())


def test_images_are_scikit_learns_with_their_grey_levels_spread() -> None:
    data = Digits("clean").data
    assert data.x.dtype == torch.uint8 and data.x.shape == (1257, 1, 8, 8) and data.test_x.shape == (540, 1, 8, 8)
    both = torch.cat([data.x, data.test_x]).double().sum() * 16 / 255
    assert abs(float(both) - load_digits().images.sum()) < 0.001 * float(both)
    assert int(data.x.max()) == 255


def test_test_items_are_the_same_for_every_seed_and_balanced() -> None:
    first = Digits("aggre").data
    other = Digits("worst", annotation_seed=5, split_seed=6, loader_seed=7).data
    assert torch.equal(first.test_x, other.test_x)
    assert first.test_labels is not None
    assert torch.bincount(first.test_labels).tolist() == [54] * 10


def test_no_test_image_is_trained_on() -> None:
    data = Digits("clean").data
    seen = {image.numpy().tobytes() for image in data.x}
    assert not any(image.numpy().tobytes() in seen for image in data.test_x)


@pytest.mark.parametrize("seed", SEEDS)
def test_noise_rises_from_aggre_over_rand1_to_worst(seed: int) -> None:
    assert 0.03 < _error("aggre", seed) < _error("rand1", seed) < _error("worst", seed) < 0.5


def test_noise_is_like_cifar10n_on_average() -> None:
    # CIFAR-10N: aggre 9.01, rand1 17.23, worst 40.21 %; simulated ones are comparable, not equal
    for regime, rate in (("aggre", 0.09), ("rand1", 0.17), ("worst", 0.40)):
        mean = sum(_error(regime, seed) for seed in SEEDS) / len(SEEDS)
        assert abs(mean - rate) < 0.04, (regime, mean)


@pytest.mark.parametrize("seed", SEEDS)
def test_rand1_and_worst_are_made_of_aggres_labels(seed: int) -> None:
    three, first, worst = (Digits(regime, annotation_seed=seed).data for regime in ("aggre", "rand1", "worst"))
    triples = {tuple(row) for row in _rows(three.annotations)}
    assert {tuple(row) for row in _rows(first.annotations)} <= triples
    assert first.annotations.labels_per_item().unique().tolist() == [1]
    assert torch.equal(worst.annotations.annotators, three.annotations.annotators)
    truth = three.true_labels
    assert truth is not None and worst.aggregated is not None
    wrong = three.annotations.labels != truth[three.annotations.items]
    any_wrong = torch.zeros(len(truth), dtype=torch.bool).index_put_(
        (three.annotations.items[wrong],), torch.tensor(True)
    )
    # worse is wrong exactly where at least one of the three is, and is then one of the wrong ones
    assert torch.equal(worst.aggregated != truth, any_wrong)
    assert (three.annotations.votes()[torch.arange(len(truth)), worst.aggregated] > 0).all()
    assert torch.equal(worst.annotations.labels, worst.aggregated[worst.annotations.items])


def _rows(noted: object) -> list[list[int]]:
    return torch.stack([noted.items, noted.annotators, noted.labels], 1).tolist()  # type: ignore[attr-defined]


def test_first_label_favours_no_annotator() -> None:
    # annotations are kept in the order of annotator ids; "the first" taken from there would be the lowest id
    ranks = []
    for seed in SEEDS:
        three, first = (Digits(regime, annotation_seed=seed).data.annotations for regime in ("aggre", "rand1"))
        ranks.append((three.padded()[0] == first.padded()[0]).double())
    shares = torch.cat(ranks).mean(0)
    assert torch.allclose(shares, torch.full((3,), 1 / 3, dtype=torch.float64), atol=0.03)


def test_annotators_differ_or_do_not_as_asked() -> None:
    differing = [_variance_ratio("differing", seed) for seed in SEEDS]
    identical = [_variance_ratio("identical", seed) for seed in SEEDS]
    assert min(differing) > 2.5
    assert 0.7 < sum(identical) / len(identical) < 1.3


def test_workloads_are_skewed_and_everyone_is_known() -> None:
    noted = Digits("aggre").data.annotations
    loads = noted.labels_per_annotator().double()
    assert noted.n_annotators == N_ANNOTATORS
    assert loads.mean() > 1.2 * loads.median() and loads.max() > 3 * loads.median()


def test_clean_has_one_annotator_who_is_always_right() -> None:
    data = Digits("clean").data
    assert data.annotations.n_annotators == 1
    assert data.true_labels is not None and torch.equal(data.annotations.labels, data.true_labels)


def test_same_seed_same_digest_other_seed_other_digest() -> None:
    digests = [Digits("aggre", annotation_seed=seed).digest() for seed in (0, 0, 1)]
    assert digests[0] == digests[1] != digests[2]
    assert len({Digits(regime).digest() for regime in REGIMES["digits"]}) == len(REGIMES["digits"])


def test_regimes_are_one_family() -> None:
    assert len({Digits.regime_family(regime) for regime in REGIMES["digits"]}) == 1


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [({"regime": "agre"}, "aggre"), ({"regime": "aggre", "annotators": "identicla"}, "identical")],
)
def test_wrong_names_list_near_ones(arguments: dict[str, str], hint: str) -> None:
    with pytest.raises(ValueError, match=f"did you mean .*{hint}"):
        Digits(**arguments)  # type: ignore[arg-type]


def test_training_batches_hold_the_aggregated_label() -> None:
    module = Digits("worst")
    data = module.data
    assert data.aggregated is not None
    seen = 0
    for batch in module.train_dataloader():
        assert torch.equal(batch["aggregated"], data.aggregated[batch["index"]])
        assert "target" not in batch
        seen += len(batch["index"])
    assert seen == len(module.train_items)
