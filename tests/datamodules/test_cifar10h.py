"""CIFAR-10H: budgets, the fixed split and bad tables on a generated twin, and the facts of the real files."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from scipy.special import comb
from torch import Tensor

from benchmark.resolve import resolve_arguments
from datamodules import cifar10_images
from datamodules.audit import POOLED, audit
from datamodules.cifar10h import Cifar10H, PublishedVotes
from datamodules.cifar10n import JPEG_NOTE
from datamodules.files import DataDamaged, DataNotFound, verify
from datamodules.votes import VoteError

N_ITEMS, A_CLASS = 100, 10


@dataclass(frozen=True)
class VoteTwin:
    """The files of a small CIFAR-10H, what they hold, and a data module that expects them."""

    root: Path
    pixels: np.ndarray
    labels: np.ndarray
    counts: np.ndarray
    module: type[Cifar10H]

    def write_images(self, labels: np.ndarray | None = None, kind: str = "PNG", n: int = N_ITEMS) -> Path:
        """The parquet file of the test split, images coded as ``kind``."""
        rows = []
        for image in self.pixels[:n]:
            stream = io.BytesIO()
            Image.fromarray(image.transpose(1, 2, 0)).save(stream, kind)
            rows.append({"bytes": stream.getvalue(), "path": None})
        image_type = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        schema = pa.schema([("img", image_type), ("label", pa.int64())])
        path = self.root / "cifar10" / "test.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        classes = self.labels if labels is None else labels
        pq.write_table(pa.table({"img": rows, "label": classes[:n]}, schema=schema), path)
        return path

    def write_counts(self, counts: np.ndarray | None = None) -> Path:
        """The table of votes."""
        path = self.root / "cifar10h" / "cifar10h-counts.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, self.counts if counts is None else counts)
        return path

    def edited(self, item: int, values: list[int]) -> np.ndarray:
        """A copy of the table in which one image has other votes."""
        table = self.counts.copy()
        table[item] = values
        return table


@pytest.fixture
def vote_twin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> VoteTwin:
    """A fresh twin with a cache of its own: 10 images a class, 8 to 12 votes each."""
    monkeypatch.setenv("ANNOBENCH_CACHE", str(tmp_path / "cache"))
    random = np.random.default_rng(0)
    labels = random.permutation(np.arange(N_ITEMS) % 10)
    shares = np.where(np.arange(10) == labels[:, None], 0.91, 0.01)
    counts = random.multinomial(random.integers(8, 13, N_ITEMS), shares)
    right = float((counts.argmax(1) == labels).mean())

    class TwinCifar10H(Cifar10H):
        published: ClassVar[PublishedVotes] = PublishedVotes(N_ITEMS, int(counts.sum()), right, 5, 0.015, 2)

    pixels = random.integers(0, 256, (N_ITEMS, 3, 32, 32), dtype=np.uint8)
    made = VoteTwin(tmp_path / "data", pixels, labels, counts, TwinCifar10H)
    made.write_images()
    made.write_counts()
    return made


# --- what comes out -------------------------------------------------------------------------------


def test_images_votes_and_classes_stay_together(vote_twin: VoteTwin) -> None:
    data = vote_twin.module("full", root=vote_twin.root).data
    place = {image.tobytes(): number for number, image in enumerate(vote_twin.pixels)}
    assert data.test_annotations is not None and data.true_labels is not None and data.test_labels is not None
    parts = ((data.x, data.annotations, data.true_labels), (data.test_x, data.test_annotations, data.test_labels))
    seen = []
    for images, noted, classes in parts:
        rows = [place[image.numpy().tobytes()] for image in images]
        assert np.array_equal(noted.votes().numpy(), vote_twin.counts[rows])
        assert np.array_equal(classes.numpy(), vote_twin.labels[rows])
        seen += rows
    assert sorted(seen) == list(range(N_ITEMS))


def test_split_is_stratified_and_fixed(vote_twin: VoteTwin) -> None:
    first = vote_twin.module("full", root=vote_twin.root).data
    other = vote_twin.module("votes=3", root=vote_twin.root, split_seed=5, annotation_seed=6, loader_seed=7).data
    assert first.test_labels is not None
    assert torch.bincount(first.test_labels).tolist() == [2] * 10
    assert torch.equal(first.test_x, other.test_x)


def test_a_twentieth_is_held_out_unless_asked_otherwise(vote_twin: VoteTwin) -> None:
    assert len(vote_twin.module("full", root=vote_twin.root).val_items) == 4
    assert len(vote_twin.module("full", root=vote_twin.root, val_fraction=0.5).val_items) == 40
    resolved = resolve_arguments(Cifar10H, {"replacement": True}, "here", skip={"regime"})
    assert resolved["val_fraction"] == 0.05 and resolved["replacement"] is True and resolved["batch_size"] == 128


def test_budgets_leave_the_full_votes_to_be_compared_with(vote_twin: VoteTwin) -> None:
    full, five, ten = (vote_twin.module(name, root=vote_twin.root).data for name in ("full", "votes=5", "votes=10"))
    assert full.full_votes is not None and five.full_votes is not None
    assert torch.equal(full.annotations.votes(), full.full_votes)
    assert torch.equal(five.full_votes, full.full_votes)
    assert (five.annotations.votes() <= ten.annotations.votes()).all()
    assert (ten.annotations.votes() <= full.full_votes).all()
    few = full.full_votes.sum(1) <= 10
    assert few.any() and torch.equal(ten.annotations.votes()[few], full.full_votes[few])


def test_test_votes_are_all_votes_under_every_budget(vote_twin: VoteTwin) -> None:
    full, five = (vote_twin.module(name, root=vote_twin.root).data.test_annotations for name in ("full", "votes=5"))
    assert full is not None and five is not None and five.equals(full)


def test_k_above_every_count_is_refused_before_anything_is_trained(vote_twin: VoteTwin) -> None:
    most = int(vote_twin.counts.sum(1).max())
    module = vote_twin.module(f"votes={most + 1}", root=vote_twin.root)
    for ask in (module.digest, module.load):
        with pytest.raises(VoteError, match=f"K is {most + 1}, but no item has more than {most} votes"):
            ask()
    assert vote_twin.module(f"votes={most}", root=vote_twin.root).data is not None
    drawn = vote_twin.module("votes=40", root=vote_twin.root, replacement=True).data.annotations
    assert drawn.labels_per_item().unique().tolist() == [40]


def test_training_images_of_cifar10_are_not_needed(vote_twin: VoteTwin) -> None:
    assert [path.name for path in (vote_twin.root / "cifar10").iterdir()] == ["test.parquet"]
    assert vote_twin.module("full", root=vote_twin.root).data.notes == ()
    vote_twin.write_images(kind="JPEG")
    assert vote_twin.module("full", root=vote_twin.root).data.notes == (JPEG_NOTE,)


def test_digest_reads_no_image_and_follows_what_is_read(vote_twin: VoteTwin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cifar10_images, "cached", None)

    def digest(regime: str, **arguments: Any) -> str:
        return vote_twin.module(regime, root=vote_twin.root, **arguments).digest()

    first = [digest("full"), digest("votes=5"), digest("votes=5", annotation_seed=1), digest("votes=6")]
    first.append(digest("votes=5", replacement=True))
    assert len(set(first)) == 5
    assert digest("full", annotation_seed=1, replacement=True) == first[0]
    vote_twin.write_images(kind="JPEG")
    assert digest("full") != first[0]
    vote_twin.write_images()
    assert digest("full") == first[0]
    moved = vote_twin.counts.copy()
    moved[3, moved[3].argmax()] += 1
    vote_twin.write_counts(moved)
    assert digest("full") != first[0]


# --- bad tables -----------------------------------------------------------------------------------


def _shuffled(twin: VoteTwin) -> np.ndarray:
    return np.random.default_rng(1).permutation(twin.counts)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (lambda twin: twin.edited(7, [9, -1] + [0] * 8), r"a negative count in row 7 \(1 such rows\): \[9, -1,"),
        (lambda twin: twin.edited(7, [0] * 10), r"no votes in row 7 \(1 such rows\)"),
        (lambda twin: twin.counts / twin.counts.sum(1, keepdims=True), r"not whole numbers \(frequencies, perhaps\)"),
        (lambda twin: twin.counts[:-1], r"has shape \(99, 10\); the published one has \(100, 10\)"),
        (lambda twin: twin.counts.astype(str), r"values of type <U21, not counts"),
        (lambda twin: twin.counts + np.eye(10, dtype=int)[twin.labels], r"votes; the published one"),
        (_shuffled, r"most frequent vote is right for \d+\.\d\d % of them, in the published one for \d+\.\d\d %"),
    ],
    ids=["negative", "without votes", "frequencies", "rows", "text", "more votes", "other order"],
)
def test_a_bad_table_is_refused_with_file_fault_and_remedy(
    vote_twin: VoteTwin, table: Callable[[VoteTwin], np.ndarray], message: str
) -> None:
    path = vote_twin.write_counts(table(vote_twin))
    with pytest.raises(DataDamaged, match=message) as caught:
        _ = vote_twin.module("full", root=vote_twin.root).data
    for part in (str(path), "Expected SHA-256: 9b36b4", "Remedy: delete it and run `annobench data prepare`"):
        assert part in str(caught.value)


def test_damaged_and_pickled_tables_are_refused(vote_twin: VoteTwin, tmp_path: Path) -> None:
    whole = vote_twin.write_counts()
    content = whole.read_bytes()
    whole.write_bytes(content[:300])
    with pytest.raises(DataDamaged, match="cannot be read as a table of votes.*truncated"):
        vote_twin.module("full", root=vote_twin.root).digest()
    whole.write_bytes(b"")
    with pytest.raises(DataDamaged, match="is empty"):
        vote_twin.module("full", root=vote_twin.root).digest()
    np.save(whole, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(DataDamaged, match="cannot be read as a table of votes"):
        vote_twin.module("full", root=vote_twin.root).digest()
    whole.unlink()
    with pytest.raises(DataNotFound, match="cifar10h/cifar10h-counts.npy.*prepare cifar10h"):
        vote_twin.module("full", root=vote_twin.root).digest()


def test_images_fewer_than_votes_are_refused(vote_twin: VoteTwin) -> None:
    vote_twin.write_images(n=60)
    with pytest.raises(DataDamaged, match="has 60 images; the votes are about 100"):
        _ = vote_twin.module("full", root=vote_twin.root).data


def test_one_edited_vote_still_loads(vote_twin: VoteTwin) -> None:
    table = vote_twin.counts.copy()
    table[0, 0] += 1
    vote_twin.write_counts(table)
    assert vote_twin.module("full", root=vote_twin.root).data.full_votes is not None


def test_audit_says_nothing_of_annotators_nobody_can_tell_apart(vote_twin: VoteTwin) -> None:
    noted, classes = vote_twin.module("full", root=vote_twin.root).annotations_for_audit()
    found = audit(noted, classes, pooled=True)
    assert found.n_items == N_ITEMS and found.n_annotations == vote_twin.counts.sum()
    assert found.annotator_variance_ratio is None and found.annotator_variance_p is None
    assert found.n_annotators is None and found.labels_per_annotator is None
    assert found.annotator_variance_basis == POOLED and "pooled" in found.verdict
    assert found.raw_agreement is not None and found.noise_rate is not None


# --- the real files -------------------------------------------------------------------------------


def _divergence(kept: Tensor, full: Tensor) -> float:
    """Mean Jensen-Shannon divergence in nats."""
    p, q = (votes.double() / votes.sum(1, keepdim=True) for votes in (kept, full))
    mean = (p + q) / 2
    to_mean = [(torch.special.xlogy(at, at) - torch.special.xlogy(at, mean)).sum(1) for at in (p, q)]
    return float((sum(to_mean) / 2).mean())


def test_real_votes_are_the_published_ones(real_data: Path) -> None:
    assert {state.status for state in verify("cifar10h", real_data)} == {"ok"}
    noted, classes = Cifar10H("full", root=real_data).annotations_for_audit()
    votes = noted.votes()
    counts = votes.sum(1)
    assert (int(counts.sum()), int(counts.min()), int(counts.max()), int(counts.median())) == (511_000, 47, 63, 51)
    assert float((votes.max(1).values == counts).double().mean()) == pytest.approx(0.439, abs=0.0005)
    assert float((votes.argmax(1) == classes).double().mean()) == pytest.approx(0.9921, abs=1e-9)


def test_real_split_is_8000_and_2000(real_data: Path) -> None:
    data = Cifar10H("votes=5", root=real_data).data
    assert data.x.shape == (8_000, 3, 32, 32) and data.test_x.shape == (2_000, 3, 32, 32)
    assert data.true_labels is not None and data.test_labels is not None and data.test_annotations is not None
    assert torch.bincount(data.true_labels).tolist() == [800] * 10
    assert torch.bincount(data.test_labels).tolist() == [200] * 10
    assert int(data.test_annotations.labels_per_item().min()) >= 47


def _expected_unanimous(votes: np.ndarray, k: int, replacement: bool) -> float:
    """Share of images whose K votes are all the same, in closed form: hypergeometric, or powers of frequencies."""
    counts = votes.sum(1)
    if replacement:
        return float(((votes / counts[:, None]) ** k).sum(1).mean())
    kept = np.minimum(k, counts)
    return float((comb(votes, kept[:, None]).sum(1) / comb(counts, kept)).mean())


@pytest.mark.parametrize(
    ("k", "replacement", "divergence"),
    [
        (5, False, 0.01508),
        (10, False, 0.00962),
        (25, False, 0.00391),
        (50, False, 0.00011),
        (5, True, 0.01505),
        (10, True, 0.01054),
        (25, True, 0.00560),
        (50, True, 0.00299),
    ],
)
def test_real_budgets_are_as_far_from_all_votes_as_counted(
    real_data: Path, k: int, replacement: bool, divergence: float
) -> None:
    # those divergences were counted on draws of others; the mean of one draw has a standard deviation of about 1 %
    full = Cifar10H("full", root=real_data).annotations_for_audit()[0].votes()
    kept = [
        Cifar10H(f"votes={k}", root=real_data, annotation_seed=seed, replacement=replacement)
        .annotations_for_audit()[0]
        .votes()
        for seed in range(4)
    ]
    mean = sum(_divergence(votes, full) for votes in kept) / len(kept)
    assert mean == pytest.approx(divergence, rel=0.04, abs=3e-5)
    share = sum(float((votes.max(1).values == votes.sum(1)).double().mean()) for votes in kept) / len(kept)
    assert share == pytest.approx(_expected_unanimous(full.numpy(), k, replacement), abs=0.004)
