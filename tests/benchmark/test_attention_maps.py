"""Attention as pictures: colour where the weight is, the same bytes for the same input, nothing half written."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from benchmark.report import attention_maps
from benchmark.report.attention_maps import write_attention


def pixels(path: Path) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(path.read_bytes())).convert("RGB")).astype(float)


def test_an_image_with_a_panel_for_each_annotator(tmp_path: Path) -> None:
    image = torch.randint(256, (3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    weights = torch.eye(16)[torch.tensor([0, 5, 15])]
    regions = torch.zeros(3, 8, 8, dtype=torch.bool)
    regions[:, :2, :2] = True
    path = write_attention(
        tmp_path / "new" / "item.png", image, weights, title="seed 0", labels=["cat", "dog", "cat"], regions=regions
    )
    first = path.read_bytes()
    assert pixels(path).std() > 10
    write_attention(path, image, weights, title="seed 0", labels=["cat", "dog", "cat"], regions=regions)
    assert path.read_bytes() == first and [each.name for each in path.parent.iterdir()] == ["item.png"]
    # another place: another picture; a class token: the same one
    moved = write_attention(tmp_path / "moved.png", image, weights.roll(1, 1), title="seed 0")
    plain = write_attention(tmp_path / "plain.png", image, weights, title="seed 0")
    with_class = torch.cat([torch.full((3, 1), 0.5), weights / 2], 1)
    assert moved.read_bytes() != plain.read_bytes()
    assert write_attention(tmp_path / "class.png", image, with_class, title="seed 0").read_bytes() == plain.read_bytes()


def test_the_bright_token_is_where_the_weight_is() -> None:
    grid = attention_maps._over_grid(np.array([[0.1, 0.2, 0.3, 0.4], [0.25, 0.25, 0.25, 0.25]]))
    assert np.allclose(grid[0], [[0.4, 0.8], [1.2, 1.6]]) and np.allclose(grid[1], 1)


def test_frames_with_a_row_for_each_annotator(tmp_path: Path) -> None:
    frames = torch.randint(256, (4, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    weights = torch.rand(13, 4, 5, generator=torch.Generator().manual_seed(1))
    path = write_attention(tmp_path / "clip.png", frames, weights, regions=torch.eye(4)[torch.arange(13) % 4] > 0)
    assert pixels(path).std() > 10
    summed = write_attention(
        tmp_path / "summed.png", frames, weights.sum(-1), regions=torch.eye(4)[torch.arange(13) % 4] > 0
    )
    assert summed.stat().st_size == path.stat().st_size


def test_what_does_not_fit_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    image = torch.zeros(1, 4, 4, dtype=torch.uint8)
    even = torch.full((2, 4), 0.25)
    path = tmp_path / "item.png"
    with pytest.raises(ValueError, match=r"shape \(2, 6\) lies over no square grid"):
        write_attention(path, image, torch.full((2, 6), 1 / 6))
    with pytest.raises(ValueError, match="3 labels for 2 annotators"):
        write_attention(path, image, even, labels=["a", "b", "c"])
    with pytest.raises(ValueError, match="1 regions for 2 annotators"):
        write_attention(path, image, even, regions=torch.ones(1, 2, 2))
    with pytest.raises(ValueError, match=r"shape \(2, 4\) for 3 frames"):
        write_attention(path, image.expand(3, 1, 4, 4), even)
    assert not list(tmp_path.iterdir())
