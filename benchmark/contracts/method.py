"""What every method promises. Faults seen in other projects are named by the check that rules them out."""

from __future__ import annotations

import io
from collections.abc import Callable

import torch
from torch import Tensor, nn

from benchmark.contracts.core import (
    ContractError,
    differing,
    require,
    require_finite,
    require_log_probabilities,
    require_plain_defaults,
    require_shape,
)
from benchmark.contracts.training import BATCH_SIZE, MethodCase
from models.base import CrowdModule

#: largest deviation of one item's probabilities from those in its batch
TOLERANCE = 1e-4
#: batch norm's own refusal of a single value; the loader never hands such a batch to training
BATCH_NORM_REFUSAL = "Expected more than 1 value per channel"


def constructible_from_data_info(case: MethodCase) -> None:
    """``cls(data_info)`` works with defaults alone; arguments are keyword-only with plain defaults."""
    require(issubclass(case.cls, CrowdModule), "is no subclass of models.base.CrowdModule")
    require_plain_defaults(case.cls, "data_info")
    built = case.cls(case.data_info)
    require(built.data_info == case.data_info, "data_info is not kept; call super().__init__(data_info)")
    case.build()


def declares_version_and_needs(case: MethodCase) -> None:
    """``version`` is a text and ``needs`` a frozenset of texts; both enter the plan of a grid."""
    version, needs = case.cls.version, case.cls.needs
    require(isinstance(version, str) and bool(version), f"version is {version!r}, expected a text such as '1'")
    plain = isinstance(needs, frozenset) and all(isinstance(name, str) for name in needs)
    require(plain, f"needs is {needs!r}, expected a frozenset of texts")


def training_stays_finite(case: MethodCase) -> None:
    """Losses, weights and logged values are finite on data with gaps of every kind (pytorch#70348)."""
    run = case.fit()
    given = [loss for loss in run.losses if loss is not None]
    require(bool(given), "training_step returned no loss for any batch that has labels")
    require_finite("the loss", torch.tensor(given))
    for name, value in {**run.state, **run.logged}.items():
        require_finite(f"{name} after training", value)


def missing_labels_change_nothing(case: MethodCase) -> None:
    """Without one label the loss is finite (or None) and no weight moves (pytorch#70348)."""
    run = case.fit("missing")
    given = [loss for loss in run.losses if loss is not None]
    require_finite("the loss of a batch without labels", torch.tensor(given))
    after = {name: value.detach() for name, value in run.method.named_parameters()}
    moved = differing(run.before, after)
    require(
        not moved,
        f"weights moved although nothing was labelled: {', '.join(moved[:3])}; return None from training_step "
        "to skip the step (a loss of zero still lets weight decay act)",
    )


def one_item_batches(case: MethodCase) -> None:
    """Batches of one item train and predict; only batch norm's own refusal is accepted in training."""
    try:
        case.fit(batch_size=1, n_items=14, eval_batch_size=1)
    except ValueError as error:
        if BATCH_NORM_REFUSAL not in str(error):
            raise
    run = case.fit()
    require_shape("predict_consensus of one item", run.consensus(run.test_x[:1]), (1, _classes(case)))


def last_batch_of_one_item(case: MethodCase) -> None:
    """A training set of k*B+1 items trains, also with batch norm (pytorch#7716)."""
    n_items = next(n for n in range(4 * BATCH_SIZE, 8 * BATCH_SIZE) if (n - round(0.1 * n)) % BATCH_SIZE == 1)
    run = case.fit(n_items=n_items)
    require_finite("the loss", torch.tensor([loss for loss in run.losses if loss is not None]))


def consensus_is_log_probabilities(case: MethodCase) -> None:
    """``[B, C]``, finite, each row's probabilities sum to 1 – also for classes nobody voted for (cleanlab#519)."""
    run = case.fit()
    consensus = run.consensus(run.test_x)
    require_shape("predict_consensus", consensus, (len(run.test_x), _classes(case)))
    require_log_probabilities("predict_consensus", consensus)


def consensus_does_not_depend_on_the_batch(case: MethodCase) -> None:
    """In evaluation mode an item's prediction is the same alone and among others."""
    run = case.fit()
    together = run.consensus(run.test_x)
    alone = torch.cat([run.consensus(item.unsqueeze(0)) for item in run.test_x])
    gap = float((together.exp() - alone.exp()).abs().max())
    require(
        gap <= TOLERANCE,
        f"probabilities differ by up to {gap:.2g} between a batch and its items one at a time",
    )


def annotators_are_predicted(case: MethodCase) -> None:
    """``predict_annotators`` gives ``[B, R, C]`` for all (one has no label) and ``[B, K, C]`` for those asked."""
    run = case.fit()
    n_annotators, x = case.data_info.n_annotators, run.test_x
    everyone = run.annotators(x)
    require_shape("predict_annotators of all", everyone, (len(x), n_annotators, _classes(case)))
    require_log_probabilities("predict_annotators of all", everyone)
    asked = torch.arange(2 * len(x)).reshape(len(x), 2) % n_annotators
    some = run.annotators(x, asked)
    require_shape("predict_annotators of two each", some, (len(x), 2, _classes(case)))
    require_log_probabilities("predict_annotators of two each", some)


def padded_annotators_are_harmless(case: MethodCase) -> None:
    """Ids of -1 neither crash (LAVIS#536) nor change what the others are predicted to say."""
    run = case.fit()
    x = run.test_x
    asked = torch.arange(2 * len(x)).reshape(len(x), 2) % case.data_info.n_annotators
    padded = torch.cat([asked, torch.full((len(x), 2), -1)], dim=1)
    plain, longer = run.annotators(x, asked), run.annotators(x, padded)
    require_shape("predict_annotators with padding", longer, (len(x), 4, _classes(case)))
    require_finite("predict_annotators with padding", longer)
    gap = float((longer[:, :2].exp() - plain.exp()).abs().max())
    require(gap <= TOLERANCE, f"padding with -1 changes the probabilities of other annotators by up to {gap:.2g}")
    require_finite("predict_annotators of nobody", run.annotators(x, torch.full_like(asked, -1)))


@torch.no_grad()
def _skill_and_confusion(method: CrowdModule) -> tuple[Tensor | None, Tensor | None]:
    return method.annotator_skill(), method.annotator_confusion()


def skills_and_confusions_are_valid(case: MethodCase) -> None:
    """Skills ``[R]`` in [0, 1], confusions ``[R, C, C]`` with rows that sum to 1; an idle annotator included."""
    method = case.fit().method
    n_annotators, n_classes = case.data_info.n_annotators, _classes(case)
    skill, confusion = _skill_and_confusion(method)
    if skill is not None:
        require_shape("annotator_skill", skill, (n_annotators,))
        require_finite("annotator_skill", skill)
        low, high = float(skill.min()), float(skill.max())
        require(low >= 0 and high <= 1, f"annotator_skill runs from {low:.3g} to {high:.3g}, expected [0, 1]")
    if confusion is not None:
        require_shape("annotator_confusion", confusion, (n_annotators, n_classes, n_classes))
        require_log_probabilities("annotator_confusion", confusion.clamp_min(1e-12).log())


def class_logits_are_the_consensus(case: MethodCase) -> None:
    """``class_logits``, where there are any: ``[B, C]``, differentiable, and their softmax is the consensus."""
    run = case.fit()
    x = run.test_x.requires_grad_()
    logits = run.method.class_logits(x)
    if logits is None:
        return
    require_shape("class_logits", logits, (len(x), _classes(case)))
    gap = float((logits.detach().softmax(-1) - run.consensus(x).exp()).abs().max())
    require(gap <= TOLERANCE, f"the softmax of class_logits differs from predict_consensus by up to {gap:.2g}")
    _require_gradients("class_logits", logits, x)


def embeddings_are_features(case: MethodCase) -> None:
    """``embed``, where there is any: ``[B, D]``, finite, differentiable."""
    run = case.fit()
    x = run.test_x.requires_grad_()
    features = run.method.embed(x)
    if features is None:
        return
    require(
        features.ndim == 2 and len(features) == len(x),
        f"embed has shape {tuple(features.shape)}, expected ({len(x)}, features)",
    )
    require_finite("embed", features)
    _require_gradients("embed", features, x)


def pooling_layer_reads_a_feature_map(case: MethodCase) -> None:
    """``pooling_layer``, where there is one, is a part that reads a map ``[B, D, H, W]`` once as classes are scored."""
    run = case.fit()
    layer = run.method.pooling_layer()
    if layer is None:
        return
    require(any(layer is part for part in run.method.modules()), "pooling_layer is no part of the method")
    x = run.test_x.requires_grad_()
    maps = _inputs_of(layer, run.method, x)
    require(len(maps) == 1, f"pooling_layer ran {len(maps)} times for one batch, expected once")
    found = maps[0]
    require(
        found.ndim == 4 and len(found) == len(x),
        f"pooling_layer reads shape {tuple(found.shape)}, expected ({len(x)}, channels, height, width)",
    )
    _require_gradients("the input of pooling_layer", found, x)


def _inputs_of(layer: nn.Module, method: CrowdModule, x: Tensor) -> list[Tensor]:
    """What ``layer`` reads while ``method`` scores the classes of ``x``."""
    found: list[Tensor] = []
    hook = layer.register_forward_pre_hook(lambda _, inputs: found.append(inputs[0]))
    try:
        if method.class_logits(x) is None:
            method.predict_consensus(x)
    finally:
        hook.remove()
    return found


def _require_gradients(name: str, value: Tensor, x: Tensor) -> None:
    """Requires a graph from ``x`` to ``value`` whose gradient is finite."""
    require(value.requires_grad, f"{name} cannot be differentiated; leave detach() and no_grad() to the caller")
    (gradient,) = torch.autograd.grad(value.square().sum(), x, allow_unused=True)
    if gradient is None:
        raise ContractError(f"{name} has no gradient with regard to x")
    require_finite(f"the gradient of {name}", gradient)


def predicting_changes_nothing(case: MethodCase) -> None:
    """Asking twice gives the same answer and leaves the state alone."""
    run = case.fit()
    before = {name: value.clone() for name, value in run.state.items()}
    first, second = run.consensus(run.test_x), run.consensus(run.test_x)
    run.annotators(run.test_x)
    require(torch.equal(first, second), "predict_consensus gives another answer when asked again")
    changed = differing(before, run.state)
    require(not changed, f"predicting changed the state: {', '.join(changed[:3])}")


def state_is_restored_bit_for_bit(case: MethodCase) -> None:
    """A saved state, loaded into a fresh method, predicts the same bits (pytorch-lightning#6074)."""
    run = case.fit()
    file = io.BytesIO()
    torch.save(run.method.state_dict(), file)
    file.seek(0)
    restored = case.build(seed=1).eval()
    restored.load_state_dict(torch.load(file, weights_only=True))
    expected, got = _answers(run.method, run.test_x), _answers(restored, run.test_x)
    changed = differing(expected, got)
    require(not changed, f"after loading the saved state other values come from: {', '.join(changed)}")


def same_seed_same_bits(case: MethodCase) -> None:
    """Two trainings from one seed end in the same state to the last bit."""
    first, second = case.fit(seed=3), case.fit(seed=3)
    changed = differing(first.state, second.state)
    require(not changed, f"two trainings from the same seed differ in: {', '.join(changed[:3])}")


def clean_labels_are_not_read(case: MethodCase) -> None:
    """Other clean labels change neither a weight nor a logged value."""
    first = case.fit(expose_target=True)
    second = case.fit(expose_target=True, clean_shift=1)
    changed = differing({**first.state, **first.logged}, {**second.state, **second.logged})
    require(not changed, f"clean labels were read: other ones change {', '.join(changed[:3])}")


#: every promise of a method, in the order in which they are checked
METHOD_CHECKS: tuple[Callable[[MethodCase], None], ...] = (
    constructible_from_data_info,
    declares_version_and_needs,
    training_stays_finite,
    missing_labels_change_nothing,
    one_item_batches,
    last_batch_of_one_item,
    consensus_is_log_probabilities,
    consensus_does_not_depend_on_the_batch,
    annotators_are_predicted,
    padded_annotators_are_harmless,
    skills_and_confusions_are_valid,
    class_logits_are_the_consensus,
    embeddings_are_features,
    pooling_layer_reads_a_feature_map,
    predicting_changes_nothing,
    state_is_restored_bit_for_bit,
    same_seed_same_bits,
    clean_labels_are_not_read,
)


def _classes(case: MethodCase) -> int:
    return case.data_info.n_classes


@torch.no_grad()
def _answers(method: CrowdModule, x: Tensor) -> dict[str, Tensor]:
    """All that a method tells of itself, by the name of what was asked."""
    answers = {
        "predict_consensus": method.predict_consensus(x),
        "predict_annotators": method.predict_annotators(x),
        "annotator_skill": method.annotator_skill(),
        "annotator_confusion": method.annotator_confusion(),
        "class_logits": method.class_logits(x),
        "embed": method.embed(x),
    }
    return {name: value for name, value in answers.items() if value is not None}
