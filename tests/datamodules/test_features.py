"""Features that lie in a file: read row by row, given back, sent on in blocks; and what is refused."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from datamodules.annotations import Annotations
from datamodules.augment import Augmenter
from datamodules.base import CrowdData, CrowdDataModule
from datamodules.features import MappedTensor, check_features, open_mapped, sent_to
from datamodules.loader import BatchLoader, Source

N, M = 20, 6


class Pictures(CrowdDataModule):
    """Small images; features take their place."""

    name = "pictures"
    regimes = {"all": "every label"}

    def load(self) -> CrowdData:
        labels = torch.arange(N) % 2
        noted = Annotations(torch.arange(N), torch.zeros(N, dtype=torch.long), labels, N, 1, 2)
        images = torch.zeros(N, 3, 8, 8, dtype=torch.uint8)
        return CrowdData(images, noted, labels, images[:M], labels[:M], mean=(0.5,) * 3, std=(0.5,) * 3)


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).half()


def written(folder: Path, values: Tensor) -> MappedTensor:
    np.save(folder / "tokens.npy", values.numpy())
    return open_mapped(folder / "tokens.npy")


def mapped_kib() -> int:
    """KiB of mapped files that this process has in memory (Linux)."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssFile"))
    return int(line.split()[1])


# --- tensors in a file ----------------------------------------------------------------------------


def test_a_mapped_tensor_reads_as_the_file_and_gives_plain_tensors(tmp_path: Path) -> None:
    values = numbers(7, 3, 4)
    mapped = written(tmp_path, values)
    assert mapped.dtype == torch.float16 and mapped.shape == (7, 3, 4) and torch.equal(mapped, values)
    mapped.release()
    assert torch.equal(mapped.index_select(0, torch.tensor([6, 1])), values[[6, 1]]), "released rows are read again"
    assert all(type(result) is Tensor for result in (mapped[:2], mapped.float(), mapped + 1))
    assert torch.equal(sent_to(mapped, torch.device("cpu")), values)


def test_another_process_maps_the_file_itself(tmp_path: Path) -> None:
    values = numbers(7, 3, 4)
    content = pickle.dumps(written(tmp_path, values))
    assert len(content) < 1000, "the values themselves are not sent"
    again = pickle.loads(content)  # noqa: S301
    assert isinstance(again, MappedTensor) and torch.equal(again, values)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="resident memory is read from /proc")
def test_an_epoch_over_a_file_never_holds_the_file(tmp_path: Path) -> None:
    """Pages of a mapped file count as the process's: an epoch over 3.1 GB of tokens would have held 3.1 GB."""
    (tmp_path / "tokens.npy").touch()
    array = np.lib.format.open_memmap(tmp_path / "tokens.npy", mode="w+", dtype=np.float16, shape=(256, 256, 1024))
    array.flush()
    del array
    mapped = open_mapped(tmp_path / "tokens.npy")
    loader = BatchLoader(
        Source({"x": mapped}), augmenter=Augmenter((-1,)), views={"x": "none"}, batch_size=8, shuffle=True, seed=0
    )
    before, most = mapped_kib(), 0
    for batch in loader:
        assert batch["x"].dtype == torch.float32
        most = max(most, mapped_kib() - before)
    # 128 MiB in all, 4 MiB a batch
    assert mapped.nbytes == 2**27 and most < 16 * 2**10


# --- in the items' place --------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(5,), (4, 5), (3, 4, 5)], ids=["vectors", "tokens", "tokens of frames"])
def test_features_of_any_shape_take_the_items_place_unchanged(tmp_path: Path, shape: tuple[int, ...]) -> None:
    train, test = written(tmp_path, numbers(N, *shape)), numbers(M, *shape)
    module = Pictures("all", batch_size=8)
    module.represent(train, test)
    assert module.info.input_shape == shape
    assert isinstance(module.data.x, MappedTensor) and module.data.x.dtype == torch.float16
    for batch in module.train_dataloader():
        # tokens of frames have as many axes as images have, and are none
        assert torch.equal(batch["x"], train.float()[batch["index"]]) and batch["x"].dtype == torch.float32
    tested = torch.cat([batch["x"] for batch in module.test_dataloader()])
    assert torch.equal(tested, test.float())
    given = torch.cat([batch["x"] for batch in module.item_dataloader(module.data.test_x[:2])])
    assert torch.equal(given, test[:2].float())


def test_features_of_another_data_set_are_refused() -> None:
    module = Pictures("all")
    with pytest.raises(ValueError, match="pictures, train_x: 21 rows of features for 20 items; .* other data"):
        module.represent(numbers(N + 1, 4, 5), numbers(M, 4, 5))
    with pytest.raises(ValueError, match="pictures, test_x: 20 rows of features for 6 items"):
        module.represent(numbers(N, 4, 5), numbers(N, 4, 5))
    with pytest.raises(ValueError, match=r"\(4, 5\) in train_x and \(4, 6\) in test_x"):
        module.represent(numbers(N, 4, 5), numbers(M, 4, 6))


@pytest.mark.parametrize(
    ("features", "said"),
    [
        (torch.zeros(4, dtype=torch.float32), "are no features"),
        (torch.zeros(4, 3, dtype=torch.uint8), "are no features"),
        (torch.zeros(4, 1, 1, 1, 1), "are no features"),
        (torch.full((4, 3), torch.nan), "NaN or infinite"),
    ],
)
def test_what_is_no_feature_is_named(features: Tensor, said: str) -> None:
    with pytest.raises(ValueError, match=f"here: .*{said}"):
        check_features(features, 4, "here")
