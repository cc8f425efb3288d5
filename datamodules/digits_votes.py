"""scikit-learn's digits with simulated votes: CIFAR-10H's embedded twin, nothing to download.

Whom an image confuses follows from the image: voters answer with a digit as likely as the image is near to other
people's writing of it. With ``d[c]`` the mean distance of an image to the :data:`NEIGHBOURS` nearest other images
of digit c (64 grey levels of 0 to 16, Euclidean), a vote is for c with probability

    (1 - LAPSE) softmax((CLARITY [c is the true digit] - d[c]) / DOUBT) + LAPSE / 10

so votes split between the digits that the image looks like, and a few are slips. The number of votes an image is
drawn from CIFAR-10H's counts. The votes are made once, like those of a published file; seeds only choose among
them. On all 1,797 images: 51.1 votes an image (47 to 61), 44.7 % unanimous, mean entropy 0.150 nats (median
0.095), most frequent vote right for 99.0 %; CIFAR-10H has 51.1 (47 to 63), 43.9 %, 0.155 (0.095), 99.2 %.

>>> DigitsVotes("full").info.n_classes
10
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from datamodules.base import CrowdData, hash_tensors
from datamodules.digits import N_CLASSES, digit_images, mask_of_tested
from datamodules.pooled import PooledVotes, pooled_annotations
from datamodules.regimes import REGIMES

NEIGHBOURS = 5
#: distances over which a digit becomes e times less likely
DOUBT = 2.5
#: distance by which the true digit is nearer to a reader than its pixels say
CLARITY = 0.75
#: share of the votes that are slips
LAPSE = 0.005
VOTE_SEED = 0
#: votes an image -> number of images that have so many in CIFAR-10H
VOTES_AN_IMAGE = {
    47: 6,
    48: 72,
    49: 805,
    50: 2904,
    51: 3050,
    52: 1852,
    53: 787,
    54: 258,
    55: 69,
    56: 54,
    57: 56,
    58: 44,
    59: 30,
    60: 8,
    61: 4,
    63: 1,
}
#: side in pixels of the pieces of a photograph, each shrunk to 8x8
PIECE = 32
SIMULATED_NOTE = "the votes of digits_votes are simulated; who is in doubt about an image follows from its pixels"


class DigitsVotes(PooledVotes):
    """Digits with simulated votes; see :class:`PooledVotes` for the arguments.

    Out-of-distribution sets: ``photographs`` (520 grey pieces of scikit-learn's two sample photographs) and
    ``shuffled_digits`` (the test images, the pixels of each in a random order).
    """

    name = "digits_votes"
    regimes = REGIMES["digits_votes"]
    embedded = True
    #: a mirrored digit is no digit
    standard_augmentation = "shift"
    ood_sets = ("photographs", "shuffled_digits")

    def load(self) -> CrowdData:
        """Images from scikit-learn, votes simulated.

        Raises:
            VoteError: if no image has K votes.
        """
        images, classes = digit_images()
        votes, is_test = simulated_votes(), mask_of_tested(classes)
        x = images[~is_test]
        scaled = x.double() / 255
        return CrowdData(
            x=x,
            annotations=pooled_annotations(self.budgeted(votes)[~is_test]),
            true_labels=classes[~is_test],
            test_x=images[is_test],
            test_labels=classes[is_test],
            test_annotations=pooled_annotations(votes[is_test]),
            class_names=tuple(str(digit) for digit in range(N_CLASSES)),
            notes=(SIMULATED_NOTE,),
            mean=(float(scaled.mean()),),
            std=(float(scaled.std()),),
            full_votes=votes[~is_test],
        )

    def load_ood(self, name: str) -> Tensor:
        """Images ``[M, 1, 8, 8]`` uint8 of one of the two sets; see the class."""
        if name == "photographs":
            return _photograph_pieces()
        return _shuffled_digits() if name == "shuffled_digits" else super().load_ood(name)

    def ood_digest(self, name: str) -> str | None:
        """SHA-256 (hex) of the images."""
        return hash_tensors(self.load_ood(name))


def vote_probabilities(images: Tensor, classes: Tensor) -> Tensor:
    """How likely a vote is for each digit ``[N, 10]`` float64; see the module for the formula.

    Args:
        images: uint8 ``[N, 1, 8, 8]``, 17 grey levels spread over 0..255.
        classes: true digits ``[N]``.
    """
    # whole numbers: exact sums, whatever the order in which a machine adds
    grey = (images.flatten(1).double() * (16 / 255)).round()
    norms = grey.square().sum(dim=1)
    squares = norms.unsqueeze(1) + norms - 2 * grey @ grey.T
    squares.fill_diagonal_(float("inf"))
    near = [
        squares[:, classes == digit].topk(NEIGHBOURS, dim=1, largest=False).values.sqrt().mean(dim=1)
        for digit in range(N_CLASSES)
    ]
    own = torch.nn.functional.one_hot(classes, N_CLASSES)
    clear = torch.softmax((CLARITY * own - torch.stack(near, dim=1)) / DOUBT, dim=1)
    return (1 - LAPSE) * clear + LAPSE / N_CLASSES


@lru_cache(maxsize=1)
def simulated_votes() -> Tensor:
    """Votes ``[1797, 10]`` int64 on all images, always the same."""
    images, classes = digit_images()
    random = np.random.default_rng(VOTE_SEED)
    shares = np.array(list(VOTES_AN_IMAGE.values())) / sum(VOTES_AN_IMAGE.values())
    counts = random.choice(list(VOTES_AN_IMAGE), size=len(images), p=shares)
    return torch.from_numpy(random.multinomial(counts, vote_probabilities(images, classes).numpy()))


# --- images of other things -----------------------------------------------------------------------


@lru_cache(maxsize=1)
def _photograph_pieces() -> Tensor:
    """Pieces ``[520, 1, 8, 8]`` uint8 of both photographs in grey, side by side, each pixel the mean of 4x4."""
    from sklearn.datasets import load_sample_images

    pieces = []
    for photograph in load_sample_images().images:
        grey = torch.tensor(photograph, dtype=torch.float64).mean(dim=2)
        rows, columns = (side // PIECE for side in grey.shape)
        whole = grey[: rows * PIECE, : columns * PIECE].reshape(1, 1, rows * PIECE, columns * PIECE)
        small = torch.nn.functional.avg_pool2d(whole, PIECE // 8)
        pieces.append(small.reshape(rows, 8, columns, 8).transpose(1, 2).reshape(-1, 1, 8, 8))
    return torch.cat(pieces).round().to(torch.uint8)


@lru_cache(maxsize=1)
def _shuffled_digits() -> Tensor:
    """The test images ``[540, 1, 8, 8]`` uint8, each with its pixels in an order of its own."""
    images, classes = digit_images()
    flat = images[mask_of_tested(classes)].flatten(1).numpy()
    return torch.from_numpy(np.random.default_rng(VOTE_SEED).permuted(flat, axis=1)).reshape(-1, 1, 8, 8)
