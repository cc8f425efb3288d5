"""Embedding map: where a few-shot method's network puts items of classes that it never saw, in two dimensions."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmark.evaluate.examples import rounded
from benchmark.evaluate.measured import Measured
from datamodules.base import EpisodicDataModule
from models.base import EpisodicModule
from models.embedding import EmbeddingModule

#: target classes and items of each that are mapped
CLASSES, ITEMS = 10, 20
#: of t-SNE; below the number of items of a class
PERPLEXITY = 15.0


def measure(method: EpisodicModule, datamodule: EpisodicDataModule) -> Measured:
    """t-SNE of the first target classes' embeddings: arrays ``map_x``, ``map_y`` and ``map_class``.

    ``silhouette`` is the mean silhouette width of the classes in the embedding itself (squared Euclidean distances, as
    the methods use), in -1..1. A method without an embedding has neither.
    """
    if not isinstance(method, EmbeddingModule):
        return Measured(notes=("only methods with an embedding have a map",))
    from sklearn.manifold import TSNE
    from sklearn.metrics import silhouette_score

    x, classes = items(datamodule)
    with torch.inference_mode(False), torch.no_grad():
        embedded = method.embed(x.unsqueeze(0).to(method.device))[0].cpu()
    array = embedded.double().numpy()
    places = torch.from_numpy(TSNE(perplexity=PERPLEXITY, init="pca", random_state=0).fit_transform(array))
    width = float(silhouette_score(array, classes.numpy(), metric="sqeuclidean"))
    return Measured(
        {"silhouette": width},
        {
            "map_x": rounded(places[:, 0].double()),
            "map_y": rounded(places[:, 1].double()),
            "map_class": [float(number) for number in classes.tolist()],
        },
    )


def items(datamodule: EpisodicDataModule) -> tuple[Tensor, Tensor]:
    """Normalised items ``[N, ...]`` of the first target classes and their class ids ``[N]``, in the pool's order."""
    pool = datamodule.data.test
    rows = [(pool.classes == number).nonzero().flatten()[:ITEMS] for number in pool.classes.unique()[:CLASSES]]
    chosen = torch.cat(rows)
    return datamodule.normalised(pool.x[chosen]), pool.classes[chosen]
