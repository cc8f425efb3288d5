"""Query accuracy of few-shot methods: by hand on a method whose answers are known, and through a whole cell."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from benchmark.evaluate import embedding_map, evaluate
from benchmark.evaluate.episodic import accuracies
from benchmark.resolve import resolve
from benchmark.run import run_cell
from benchmark.spec import Cell, TrainArgs
from datamodules.digits_episodes import DigitsEpisodes
from models.base import EpisodicModule
from models.meta_em.em import query_log_posterior
from models.meta_em.module import MetaEM
from models.prototypical.module import Prototypical

SMALL = {"train_episodes": 4, "val_episodes": 4, "test_episodes": 30, "annotators": [3, 5]}


class Oracle(EpisodicModule):
    """Knows one class of each task, or answers the first class: accuracies of 1/4 and the truth's own share."""

    adaptations: ClassVar[tuple[str, ...]] = ("first", "votes")
    needs_training: ClassVar[bool] = False

    def adapt(self, support_x: Tensor, support_labels: Tensor, adaptation: str) -> Any:
        # what is made here must be usable with gradients, as methods that learn on a support set need
        assert not support_x.is_inference()
        right = (support_labels == torch.arange(support_labels.shape[1]).view(1, -1, 1)).double().mean(2)
        return adaptation, right

    def predict_query(self, state: Any, x: Tensor) -> Tensor:
        name, right = state
        answer = torch.zeros(x.shape[:2], dtype=torch.long)
        if name == "votes":  # one query in ten per class is right for each fully agreed support item
            answer = torch.arange(4).repeat_interleave(x.shape[1] // 4).expand(len(x), -1).clone()
            answer[right.mean(1) < 1] = 0
        return torch.nn.functional.one_hot(answer, 4).float().clamp_min(1e-6).log()


def test_metrics_are_means_over_tasks_then_shares_then_numbers_of_annotators() -> None:
    data = DigitsEpisodes("hammer-spammer", **SMALL, spammer_shares=(0.0, 0.4), shares_beyond=(0.6,))
    data.setup()
    method = Oracle(data.info)
    measured = evaluate(method, data, ("episodic",))
    metrics = measured.metrics
    for annotators in (3, 5):
        for share in (0, 40, 60):
            assert metrics[f"r{annotators}_s{share}_first_accuracy"] == 0.25
            each = measured.arrays[f"r{annotators}_s{share}_votes_accuracy"]
            assert len(each) == 30 and set(each) <= {0.25, 1.0}
            assert metrics[f"r{annotators}_s{share}_votes_accuracy"] == pytest.approx(sum(each) / 30)  # type: ignore[arg-type]
        parts = [metrics[f"r{annotators}_s{share}_votes_accuracy"] or 0.0 for share in (0, 40)]
        assert metrics[f"r{annotators}_votes_accuracy"] == pytest.approx(sum(parts) / 2), "shares beyond enter no mean"
    of_all = [metrics[f"r{annotators}_votes_accuracy"] or 0.0 for annotators in (3, 5)]
    assert metrics["votes_accuracy"] == pytest.approx(sum(of_all) / 2)


def test_a_prediction_that_is_nan_is_no_accuracy() -> None:
    class Lost(Oracle):
        def predict_query(self, state: Any, x: Tensor) -> Tensor:
            return torch.full((*x.shape[:2], 4), float("nan"))

    data = DigitsEpisodes("hammer-spammer", **SMALL)
    with pytest.raises(ValueError, match="Lost predicts NaN after the adaptation 'first'"):
        accuracies(Lost(data.info), data.test_episodes_for(3, 0.1))


def cell(method: str, dataset: str = "digits_episodes", **args: Any) -> Cell:
    return Cell(
        method=method,
        method_args=args,
        dataset=dataset,
        regime="hammer-spammer" if dataset == "digits_episodes" else "full",
        data_args=SMALL if dataset == "digits_episodes" else {},
        seed=0,
        train=TrainArgs(max_epochs=2, selection="best_validation_tasks"),
        protocols=("episodic",),
        profile="demo",
    )


@pytest.mark.parametrize("method", ["prototypical", "meta_em"])
def test_a_cell_of_few_shot_tasks_trains_and_repeats_to_the_last_bit(method: str) -> None:
    first, again = (run_cell(resolve(cell(method, backbone="small_cnn"))).result for _ in range(2))
    assert first.metrics == again.metrics and len(first.curves["val_accuracy"]) == 2
    assert all(0 <= (value or 0.0) <= 1 for value in first.metrics.values())


def test_what_learns_from_tasks_does_not_go_with_items_nor_the_reverse() -> None:
    assert resolve(cell("meta_em", "digits_votes")).not_applicable == (
        "meta_em learns from few-shot tasks; digits_votes has items"
    )
    assert resolve(cell("label_delivery")).not_applicable == (
        "label_delivery learns from items; digits_episodes has few-shot tasks"
    )


def test_seconds_are_of_every_adaptation_and_of_nothing_else() -> None:
    data = DigitsEpisodes("hammer-spammer", **SMALL)
    data.setup()
    measured = evaluate(Oracle(data.info), data, ("adaptation_seconds",))
    assert set(measured.metrics) == {"first_seconds", "votes_seconds"}
    assert all(seconds is not None and 0 < seconds < 60 for seconds in measured.metrics.values())


def silhouette(embedded: Tensor, classes: Tensor) -> float:
    """Mean of ``(b - a) / max(a, b)``: mean squared distance to one's own class, and to the nearest other one."""
    distances = torch.cdist(embedded, embedded) ** 2
    widths = []
    for row, own in zip(distances, classes, strict=True):
        means = {int(k): float(row[classes == k].sum()) for k in classes.unique()}
        counts = {k: int((classes == k).sum()) for k in means}
        a = means[int(own)] / (counts[int(own)] - 1)
        b = min(means[k] / counts[k] for k in means if k != int(own))
        widths.append((b - a) / max(a, b))
    return sum(widths) / len(widths)


def test_an_embedding_map_has_a_place_for_each_item_and_knows_which_classes_lie_apart() -> None:
    data = DigitsEpisodes("hammer-spammer", **SMALL)
    data.setup()
    method = Prototypical(data.info, backbone="linear", learn_scale=True)
    measured = evaluate(method, data, ("embedding_map",))
    lengths = {len(measured.arrays[name]) for name in ("map_x", "map_y", "map_class")}
    n_classes = min(10, len(data.data.test.classes.unique()))
    assert lengths == {20 * n_classes} and len(set(measured.arrays["map_class"])) == n_classes
    width, (x, classes) = measured.metrics["silhouette"], embedding_map.items(data)
    embedded = method.embed(x.unsqueeze(0))[0].detach().double()
    assert width == pytest.approx(silhouette(embedded, classes))
    assert width > silhouette(embedded, classes[torch.randperm(len(classes))]) + 0.1
    assert evaluate(Oracle(data.info), data, ("embedding_map",)).metrics == {}


def test_an_embedding_keeps_full_precision_where_the_network_has_less() -> None:
    data = DigitsEpisodes("hammer-spammer", **SMALL)
    data.setup()
    method = MetaEM(data.info, backbone="linear", learn_scale=True).eval()
    batch = next(iter(data.test_episodes_for(3, 0.1)))
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        state = method.adapt(batch["support_x"], batch["support_labels"], "em")
        answers = method.predict_query(state, batch["query_x"])
        u = method.embed(batch["query_x"])  # rounded by the network; remembered, so the same in both
    assert u.dtype == state.mu.dtype == answers.dtype == torch.float32
    assert torch.equal(answers, query_log_posterior(state, u)), "distances in bfloat16 would differ in the third digit"


def test_the_share_of_fits_that_did_not_converge_is_told_with_a_note() -> None:
    class Hasty(Oracle):
        def unconverged(self) -> dict[str, float]:
            return {"first": 0.25, "votes": 0.0}

    data = DigitsEpisodes("hammer-spammer", **SMALL)
    data.setup()
    measured = evaluate(Hasty(data.info), data, ("episodic",))
    assert measured.metrics["first_unconverged"] == 0.25 and measured.metrics["votes_unconverged"] == 0.0
    (note,) = measured.notes
    assert "some fits of first stopped before they had converged" in note and "first_unconverged" in note
    assert "first_unconverged" not in evaluate(Oracle(data.info), data, ("episodic",)).metrics
