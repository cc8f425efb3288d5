"""Cue conflict: tokens, groups, both splits and deletions on a generated twin; damage named; the real file's facts."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from datamodules.cue_conflict import CLASS_NAMES, GROUPS, CueConflict
from datamodules.files import DataDamaged, DataNotFound
from datamodules.names import UnknownName

N_WORKERS = 3
TASKS = [
    f"{shape}{number}-{texture}{1 + (number + place) % 2}.png"
    for shape in CLASS_NAMES[:3]
    for number in (1, 2, 3)
    for place, texture in enumerate(CLASS_NAMES[:3])
]


def _coded(value: int) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(np.full((16, 16, 3), value, dtype=np.uint8)).save(stream, "PNG")
    return stream.getvalue()


def _answers() -> list[list[str]]:
    """One worker of each group goes by shape, the others by texture."""
    rows = []
    for group in GROUPS.values():
        for number in range(N_WORKERS):
            for task in TASKS:
                shape, texture = (part.rstrip("0123456789") for part in task.removesuffix(".png").split("-"))
                rows.append([task, f"{group}_{number:02d}", shape if number == 0 else texture, group])
    return rows


@pytest.fixture
def twin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Writes the two files; arguments replace what stands in them."""
    monkeypatch.setenv("ANNOBENCH_CACHE", str(tmp_path / "cache"))

    def write(
        tasks: list[str] = TASKS,
        images: list[bytes] | None = None,
        rows: list[list[str]] | None = None,
        header: str = "task,worker,label,group",
    ) -> Path:
        folder = tmp_path / "cue_conflict"
        folder.mkdir(exist_ok=True)
        coded = images or [_coded(row) for row in range(len(tasks))]
        struct = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        column = pa.array([{"bytes": raw, "path": None} for raw in coded], type=struct)
        pq.write_table(pa.table({"image": column, "task": tasks}), folder / "images.parquet")
        lines = [header, *(",".join(row) for row in (_answers() if rows is None else rows))]
        (folder / "annotations.csv").write_text("\n".join(lines) + "\n")
        return tmp_path

    return write


def test_images_keep_the_order_of_the_file_through_the_cache(twin: Callable[..., Path]) -> None:
    root = twin()
    for _ in range(2):  # the second time from the cache
        module = CueConflict("full", root=root, size=16)
        values = torch.cat([module.data.x, module.data.test_x])[:, 0, 0, 0].tolist()
        cues = torch.cat([module.data.train_cues, module.data.test_cues]).tolist()
        for value, (shape, texture) in zip(values, cues, strict=True):
            assert TASKS[value].startswith(CLASS_NAMES[shape]) and f"-{CLASS_NAMES[texture]}" in TASKS[value]
    assert sorted(values) == list(range(len(TASKS)))


def test_size_resizes(twin: Callable[..., Path]) -> None:
    assert CueConflict("full", root=twin(), size=8).info.input_shape == (3, 8, 8)


def test_cue_tokens_say_class_and_kind(twin: Callable[..., Path]) -> None:
    data = CueConflict("full", root=twin(), tokens="cues").data
    assert data.x.shape[1:] == (2, 18) and data.x.dtype == torch.float32
    assert torch.equal(data.x[:, :, :16].argmax(2), data.train_cues)
    assert torch.equal(data.x.sum(2), torch.full((len(data.x), 2), 2.0))
    assert torch.equal(data.x[:, :, 16:], torch.eye(2).expand(len(data.x), 2, 2))


@pytest.mark.parametrize("group", list(GROUPS))
def test_a_group_holds_its_own_people(twin: Callable[..., Path], group: Any) -> None:
    data = CueConflict("full", root=twin(), group=group, tokens="cues").data
    assert data.annotations.n_annotators == N_WORKERS
    labels = data.annotations.dense()
    assert data.train_cues is not None and data.test_cues is not None and data.test_annotations is not None
    for noted, cues in ((labels, data.train_cues), (data.test_annotations.dense(), data.test_cues)):
        assert torch.equal(noted[:, 0], cues[:, 0])
        assert torch.equal(noted[:, 1], cues[:, 1])


def test_no_test_image_shares_an_exemplar_under_the_exemplar_split(twin: Callable[..., Path]) -> None:
    module = CueConflict("full", root=twin(), split="exemplar", size=16)
    names = [
        {part for row in x[:, 0, 0, 0].tolist() for part in _exemplars(TASKS[row])}
        for x in (module.data.x, module.data.test_x)
    ]
    assert names[0] and names[1] and not names[0] & names[1]
    left_out = len(TASKS) - len(module.data.x) - len(module.data.test_x)
    assert any(f"{left_out} of {len(TASKS)} are left out" in note for note in module.data.notes)


def _exemplars(task: str) -> set[str]:
    shape, texture = task.removesuffix(".png").split("-")
    return {f"shape {shape}", f"texture {texture}"}


def test_deleting_spares_validation_and_test_and_is_nested(twin: Callable[..., Path]) -> None:
    root = twin()
    full, some, more = (
        CueConflict(regime, root=root, tokens="cues", split_seed=3) for regime in ("full", "drop=0.2", "drop=0.4")
    )
    n_labels = len(full.train_annotations)
    assert len(some.train_annotations) == n_labels - round(0.2 * n_labels)
    assert len(more.train_annotations) == n_labels - round(0.4 * n_labels)
    assert {*_triples(more)} < {*_triples(some)} < {*_triples(full)}
    for thinned in (some, more):
        assert thinned.val_annotations.equals(full.val_annotations)
        assert thinned.data.test_annotations is not None and full.data.test_annotations is not None
        assert thinned.data.test_annotations.equals(full.data.test_annotations)
    other = CueConflict("drop=0.4", root=root, tokens="cues", split_seed=3, annotation_seed=1)
    assert not other.train_annotations.equals(more.train_annotations)


def _triples(module: CueConflict) -> list[tuple[int, ...]]:
    noted = module.train_annotations
    return list(zip(noted.items.tolist(), noted.annotators.tolist(), noted.labels.tolist(), strict=True))


def test_answers_that_name_no_class_count_as_missing(twin: Callable[..., Path]) -> None:
    rows = _answers()
    rows[0][2], rows[1][2] = "", "na"
    del rows[5]
    data = CueConflict("full", root=twin(rows=rows), tokens="cues").data
    assert data.notes[0].endswith(f"3 of {len(TASKS) * N_WORKERS} answers are missing (2 unusable)")
    assert data.test_annotations is not None
    assert len(data.annotations) + len(data.test_annotations) == len(TASKS) * N_WORKERS - 3


def test_two_seeds_split_differently(twin: Callable[..., Path]) -> None:
    root = twin()
    for split in ("random", "exemplar"):
        first, again, other = (
            CueConflict("full", root=root, split=split, tokens="cues", split_seed=seed)  # type: ignore[arg-type]
            for seed in (0, 0, 1)
        )
        assert first.digest() == again.digest() != other.digest()


# --- what cannot be used --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        ({"group": "shapes"}, "did you mean shape"),
        ({"split": "exemplars"}, "did you mean exemplar"),
        ({"tokens": "cue"}, "did you mean cues"),
        ({"size": 4}, "8 to 512"),
    ],
)
def test_a_wrong_argument_lists_what_there_is(arguments: dict[str, Any], hint: str) -> None:
    with pytest.raises(ValueError, match=hint):
        CueConflict("full", **arguments)


@pytest.mark.parametrize("regime", ["drop=1", "drop=0", "drop=.2", "drop=0.20", "drop=P", "drop=", "drop=-0.1"])
def test_a_share_that_is_none_is_refused(regime: str) -> None:
    with pytest.raises(UnknownName, match="between 0 and 1"):
        CueConflict(regime)


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataNotFound, match="cue_conflict/images.parquet"):
        _ = CueConflict("full", root=tmp_path).data


def test_an_image_that_cannot_be_decoded_is_named_and_nothing_is_cached(
    twin: Callable[..., Path], tmp_path: Path
) -> None:
    images = [_coded(row) for row in range(len(TASKS))]
    images[4] = b"no image"
    with pytest.raises(DataDamaged, match=rf"images.parquet .*row 4, {TASKS[4]}: this image cannot be decoded"):
        _ = CueConflict("full", root=twin(images=images)).data
    assert not list(tmp_path.glob("cache/*"))


@pytest.mark.parametrize("name", ["airplane1.png", "plane1-bear1.png", "bear1-bear1.jpg"])
def test_a_name_of_another_form_is_named(twin: Callable[..., Path], name: str) -> None:
    with pytest.raises(DataDamaged, match=f"row 2: {name!r} does not name two exemplars"):
        _ = CueConflict("full", root=twin(tasks=[*TASKS[:2], name, *TASKS[3:]])).data


@pytest.mark.parametrize(
    ("column", "value", "what"),
    [
        (0, "bear9-bear9.png", "line 4 is about an image that the image file lacks: 'bear9-bear9.png'"),
        (0, TASKS[0], f"line 4 is a second answer of neutral_00 on {TASKS[0]}"),
        (3, "colour", "line 4 is of an unknown group 'colour'"),
    ],
)
def test_a_row_that_makes_no_sense_is_named(twin: Callable[..., Path], column: int, value: str, what: str) -> None:
    rows = _answers()
    rows[2][column] = value
    with pytest.raises(DataDamaged, match=what):
        _ = CueConflict("full", root=twin(rows=rows), tokens="cues").data


def test_a_missing_column_and_a_missing_group_are_named(twin: Callable[..., Path]) -> None:
    with pytest.raises(DataDamaged, match="has no column worker; it has task, person, label, group"):
        _ = CueConflict("full", root=twin(header="task,person,label,group"), tokens="cues").data
    rows = [row for row in _answers() if row[3] == "neutral"]
    with pytest.raises(DataDamaged, match="holds no answer of the group 'shape_instr'"):
        _ = CueConflict("full", root=twin(rows=rows), tokens="cues", group="shape").data


# --- the real files -------------------------------------------------------------------------------

REAL = Path(os.environ.get("ANNOBENCH_DATA", "/nonexistent"))


@pytest.mark.skipif(not (REAL / "cue_conflict").is_dir(), reason="the real files are not here")
def test_the_real_answers_are_dense_and_split_as_said() -> None:
    random = CueConflict("full", tokens="cues")
    assert len(random.data.test_x) == 192 and len(random.val_items) == 192 and len(random.train_items) == 896
    assert random.info.n_annotators == 10
    exemplar = CueConflict("full", tokens="cues", split="exemplar")
    shapes = exemplar.data.test_cues
    assert shapes is not None and 80 < len(shapes) < 180
    assert len(shapes[:, 0].unique()) == len(shapes[:, 1].unique()) == 16
