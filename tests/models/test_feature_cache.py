"""The feature cache: keys, resuming, damage, two processes at once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from datamodules.features import MappedTensor
from models.encoders import Encoder, cached_tokens, features, fitted_encoder, represent
from models.encoders.entry import Entry
from models.encoders.patches import PatchEncoder

ROOT = Path(__file__).parents[2]


class Counting(Encoder):
    """Tokens are a linear function of the pixels; counts the images it encodes and can stop at one of them."""

    name = "counting"
    n_tokens, dim = 3, 5

    def __init__(self, weight: float = 1.0, offset: float = 0.0, stop_at: int | None = None) -> None:
        self.weight, self.offset, self.stop_at = torch.tensor([weight]), offset, stop_at
        self.seen = 0

    def tokens(self, images: Tensor) -> Tensor:
        if self.stop_at is not None and self.seen + len(images) > self.stop_at:
            raise RuntimeError("interrupted")
        self.seen += len(images)
        pixels = images.flatten(1).float()[:, : self.n_tokens * self.dim] * self.weight + self.offset
        return pixels.reshape(len(images), self.n_tokens, self.dim)

    def state(self) -> dict[str, Tensor]:
        return {"weight": self.weight}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        self.weight = state["weight"]

    def preprocessing(self) -> dict[str, Any]:
        return {"offset": self.offset}


def images(count: int = 50) -> Tensor:
    return torch.randint(0, 256, (count, 1, 4, 4), generator=torch.Generator().manual_seed(0)).byte()


def only_entry(root: Path) -> Path:
    (folder,) = [path for path in root.iterdir() if path.name != "fits"]
    return folder


def run(root: Path, encoder: Counting | None = None, digest: str = "d", **options: Any) -> tuple[Tensor, int]:
    """Tokens of the 50 images in chunks of 8, and how many of them had to be encoded."""
    encoder = encoder or Counting()
    tokens = cached_tokens(encoder, images(), digest, root=root, batch_size=8, **options)
    return tokens, encoder.seen


def expected() -> Tensor:
    return Counting().tokens(images()).half()


# --- what is kept ---------------------------------------------------------------------------------


def test_tokens_are_computed_once_and_read_back_the_same(tmp_path: Path) -> None:
    first, computed = run(tmp_path)
    again, recomputed = run(tmp_path)
    assert (computed, recomputed) == (50, 0)
    assert first.dtype == torch.float16 and torch.equal(first, expected()) and torch.equal(again, expected())


def test_the_file_is_an_ordinary_npy_in_half_precision(tmp_path: Path) -> None:
    run(tmp_path)
    array = np.load(only_entry(tmp_path) / "tokens.npy", allow_pickle=False)
    assert array.dtype == np.float16 and array.shape == (50, 3, 5)
    assert torch.equal(torch.from_numpy(array), expected())


def test_progress_is_told(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    run(tmp_path, on_progress=lambda done, of: told.append((done, of)))
    assert told == [(done, 50) for done in (8, 16, 24, 32, 40, 48, 50)]


def test_half_precision_is_within_its_bound(tmp_path: Path) -> None:
    # float16 has 11 significant bits: a relative error of at most 2**-11 for normal numbers
    encoder = Counting(weight=0.0123, offset=0.5)
    half, _ = run(tmp_path, encoder)
    full = encoder.tokens(images())
    assert bool(((half.float() - full).abs() <= full.abs() * 2**-11).all())
    single, _ = run(tmp_path, Counting(weight=0.0123, offset=0.5), dtype="float32")
    assert torch.equal(single, full)


def test_values_beyond_half_precision_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not finite as float16; try dtype='float32'"):
        run(tmp_path, Counting(offset=70_000.0))
    assert torch.isfinite(run(tmp_path, Counting(offset=70_000.0), dtype="float32")[0]).all()


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="resident memory is read from /proc")
def test_reading_maps_the_file_and_does_not_load_it(tmp_path: Path) -> None:
    # 64 MiB of tokens: reading a few rows must not bring in the rest
    entry = Entry(tmp_path / "entry", (64, 1024, 512), "float16", 1)
    entry.complete(lambda start, stop: np.full((stop - start, 1024, 512), start, dtype=np.float16))
    before = resident_bytes()
    tokens = entry.open()
    assert tokens is not None and tokens.shape == (64, 1024, 512) and tokens[63, 5, 7] == 63
    assert resident_bytes() - before < 16 * 2**20


def resident_bytes() -> int:
    """Bytes of this process that are in memory, mapped files included (Linux)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# --- keys -----------------------------------------------------------------------------------------


def test_weights_preprocessing_data_and_precision_have_entries_of_their_own(tmp_path: Path) -> None:
    variants = [
        (Counting(), "d", {}),
        (Counting(weight=1.0 + 1e-6), "d", {}),
        (Counting(offset=1.0), "d", {}),
        (Counting(), "other data", {}),
        (Counting(), "d", {"dtype": "float32"}),
    ]
    for encoder, digest, options in variants:
        assert run(tmp_path, encoder, digest, **options)[1] == 50
    assert len(list(tmp_path.iterdir())) == len(variants)
    # another number of images under the same digest is a mistake of the caller, and still not served
    shorter = Counting()
    assert len(cached_tokens(shorter, images(20), "d", root=tmp_path)) == 20 and shorter.seen == 20


def test_the_batch_size_is_no_part_of_the_key(tmp_path: Path) -> None:
    run(tmp_path)
    other = Counting()
    tokens = cached_tokens(other, images(), "d", root=tmp_path, batch_size=11)
    assert other.seen == 0 and torch.equal(tokens, expected())


# --- interruption and damage ----------------------------------------------------------------------


def test_an_interrupted_extraction_goes_on_where_it_was(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="interrupted"):
        run(tmp_path, Counting(stop_at=30))
    tokens, computed = run(tmp_path)
    assert computed == 50 - 24 and torch.equal(tokens, expected())


def test_what_was_begun_with_other_batches_is_finished_with_its_own(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="interrupted"):
        run(tmp_path, Counting(stop_at=30))
    encoder = Counting()
    tokens = cached_tokens(encoder, images(), "d", root=tmp_path, batch_size=11)
    assert encoder.seen == 50 - 24 and torch.equal(tokens, expected())


def child(root: Path, body: str) -> subprocess.Popen[str]:
    """A process with the encoder above, called ``encoder``, that extracts into ``root`` after running ``body``."""
    code = f"""
import sys, time
sys.path[:0] = [{str(ROOT)!r}]
from tests.models.test_feature_cache import Counting, run
from pathlib import Path
encoder = Counting()
{body}
print(run(Path({str(root)!r}), encoder)[1], flush=True)
"""
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


def test_a_killed_process_leaves_what_it_had_done(tmp_path: Path) -> None:
    slow = (
        "plain = encoder.tokens\nencoder.tokens = lambda x: (time.sleep(100 if encoder.seen >= 24 else 0), plain(x))[1]"
    )
    process = child(tmp_path, slow)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        records = list(tmp_path.glob("*/progress.json"))
        if records and sum(known is not None for known in json.loads(records[0].read_text())["checksums"]) == 3:
            break
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    tokens, computed = run(tmp_path)
    assert computed == 50 - 24 and torch.equal(tokens, expected())


def test_two_processes_compute_an_entry_once(tmp_path: Path) -> None:
    slow = "plain = encoder.tokens\nencoder.tokens = lambda x: (time.sleep(0.1), plain(x))[1]"
    processes = [child(tmp_path, slow) for _ in range(2)]
    computed = sorted(int(process.communicate(timeout=60)[0]) for process in processes)
    assert computed == [0, 50]
    assert torch.equal(run(tmp_path)[0], expected())


def test_a_truncated_file_is_noticed_and_rebuilt(tmp_path: Path) -> None:
    run(tmp_path)
    path = only_entry(tmp_path) / "tokens.npy"
    os.truncate(path, path.stat().st_size - 9 * 30)
    tokens, computed = run(tmp_path)
    assert 0 < computed < 50 and torch.equal(tokens, expected())
    os.truncate(path, 0)
    tokens, computed = run(tmp_path)
    assert computed == 50 and torch.equal(tokens, expected())


def test_a_changed_chunk_is_noticed_and_only_that_one_computed_again(tmp_path: Path) -> None:
    run(tmp_path)
    path = only_entry(tmp_path) / "tokens.npy"
    with path.open("r+b") as file:
        file.seek(path.stat().st_size - 20 * 30)
        file.write(b"\xff" * 4)
    tokens, computed = run(tmp_path)
    assert computed == 8 and torch.equal(tokens, expected())


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"chunk": 0, "checksums": [], "stamp": null}'], ids=repr)
def test_a_damaged_record_costs_the_work_and_nothing_else(tmp_path: Path, content: bytes) -> None:
    run(tmp_path)
    (only_entry(tmp_path) / "progress.json").write_bytes(content)
    tokens, computed = run(tmp_path)
    assert computed == 50 and torch.equal(tokens, expected())


def test_a_lost_or_pickled_file_is_written_anew(tmp_path: Path) -> None:
    run(tmp_path)
    path = only_entry(tmp_path) / "tokens.npy"
    path.unlink()
    assert run(tmp_path)[1] == 50
    np.save(path, np.array([{}], dtype=object), allow_pickle=True)
    tokens, computed = run(tmp_path)
    assert computed == 50 and torch.equal(tokens, expected())


def test_where_nothing_can_be_written_tokens_are_computed_in_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("not a folder")
    tokens, computed = run(tmp_path / "file" / "cache")
    assert computed == 50 and torch.equal(tokens, expected())
    assert "cannot write" in caplog.text and "in memory" in caplog.text
    encoder = fitted_encoder("patches", {"features": 8, "patches": 50}, images(), "d", root=tmp_path / "file")
    assert encoder.state()


def test_misuse_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        cached_tokens(Counting(), images(), "d", root=tmp_path, batch_size=0)
    with pytest.raises(ValueError, match="at least 1"):
        cached_tokens(Counting(), images(0), "d", root=tmp_path)
    with pytest.raises(ValueError, match="form"):
        features(Counting(), images(), "d", "max", root=tmp_path)  # type: ignore[arg-type]


# --- features and fits ----------------------------------------------------------------------------


def test_features_flatten_or_average_tokens(tmp_path: Path) -> None:
    flat = features(Counting(), images(), "d", root=tmp_path)
    mean = features(Counting(), images(), "d", "mean", root=tmp_path)
    assert flat.dtype == mean.dtype == torch.float32
    torch.testing.assert_close(flat, expected().flatten(1).float())
    torch.testing.assert_close(mean, expected().float().mean(1))


def test_tokens_stay_in_their_file(tmp_path: Path) -> None:
    tokens = features(Counting(), images(), "d", "tokens", root=tmp_path)
    assert isinstance(tokens, MappedTensor) and tokens.dtype == torch.float16 and tokens.shape == (50, 3, 5)
    assert torch.equal(tokens, expected())


def test_a_mean_is_kept_so_that_tokens_are_not_read_again(tmp_path: Path) -> None:
    first = features(Counting(), images(), "d", "mean", root=tmp_path)
    (tokens,) = (path for path in tmp_path.glob("*/tokens.npy") if np.load(path).ndim == 3)
    tokens.unlink()
    again = Counting()
    assert torch.equal(features(again, images(), "d", "mean", root=tmp_path), first) and again.seen == 0


def test_frames_are_encoded_one_by_one(tmp_path: Path) -> None:
    clips = images(60).reshape(10, 6, 1, 4, 4)
    told: list[tuple[int, int]] = []
    tokens = cached_tokens(
        Counting(), clips, "d", root=tmp_path, batch_size=13, on_progress=lambda done, of: told.append((done, of))
    )
    assert tokens.shape == (10, 6, 3, 5)
    assert torch.equal(tokens, torch.stack([Counting().tokens(clip).half() for clip in clips]))
    assert told == [(done, 10) for done in (2, 4, 6, 8, 10)]
    # a clip of more frames than a batch has is encoded in parts, with the same values
    parts = cached_tokens(Counting(), clips, "d", root=tmp_path / "parts", batch_size=4)
    assert torch.equal(parts, tokens)
    torch.testing.assert_close(
        features(Counting(), clips, "d", "mean", root=tmp_path), tokens.float().mean((1, 2)), rtol=1e-5, atol=1e-5
    )
    args = {"features": 8, "patches": 100}
    train, test = represent("patches", args, clips, clips[:4], "d", form="tokens", root=tmp_path)
    assert train.shape == (10, 6, 4, 8) and test.shape == (4, 6, 4, 8)


def test_represent_fits_on_training_images_once(isolated_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fits: list[int] = []
    fit = PatchEncoder.fit
    monkeypatch.setattr(PatchEncoder, "fit", lambda self, x: (fits.append(len(x)), fit(self, x))[1])
    args = {"features": 8, "patches": 100}
    train, test = represent("patches", args, images(50), images(20), "d")
    again = represent("patches", args, images(50), images(20), "d")
    assert fits == [50]
    assert train.shape == (50, 32) and test.shape == (20, 32) and train.dtype == torch.float32
    assert torch.equal(train, again[0]) and torch.equal(test, again[1])
    assert (isolated_cache / "cache" / "features").is_dir()
    represent("patches", args, images(50), images(20), "other data")
    represent("patches", {**args, "seed": 1}, images(50), images(20), "d")
    assert fits == [50] * 3
    # features of another part of the data, or of other data, are other entries: 3 x (train, test), and the fits
    assert len(list((isolated_cache / "cache" / "features").iterdir())) >= 5


def test_features_with_and_without_a_cache_are_the_same_bits(tmp_path: Path) -> None:
    args = {"features": 8, "patches": 100}
    (tmp_path / "file").touch()
    kept = represent("patches", args, images(50), images(20), "d", root=tmp_path / "cache")
    computed = represent("patches", args, images(50), images(20), "d", root=tmp_path / "file")
    assert torch.equal(kept[0], computed[0]) and torch.equal(kept[1], computed[1])


@pytest.mark.parametrize("damage", ["truncated", "changed"])
def test_a_damaged_fit_is_learned_again(tmp_path: Path, damage: str) -> None:
    args = {"features": 8, "patches": 100}
    sound = fitted_encoder("patches", args, images(), "d", root=tmp_path).fingerprint()
    (path,) = (tmp_path / "fits").glob("*.safetensors")
    content = path.read_bytes()
    path.write_bytes(content[:-40] if damage == "truncated" else content[:-2] + b"\x11\x22")
    assert fitted_encoder("patches", args, images(), "d", root=tmp_path).fingerprint() == sound
    assert path.read_bytes() == content


def test_items_that_are_no_images_are_refused(tmp_path: Path) -> None:
    # an encoder over data that is features already ended in an index error of a reshape
    features = torch.zeros(6, 4)
    with pytest.raises(ValueError, match=r"'patches' reads images .* are \(6, 4\), features already: leave"):
        represent("patches", {}, features, features, "d", root=tmp_path)
    assert not list(tmp_path.iterdir())
