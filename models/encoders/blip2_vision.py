"""The frozen image encoder inside BLIP-2 and InstructBLIP: EVA ViT-g/14, 39 blocks, then ``ln_vision``.

What QuMATL (arXiv 2503.15237) reads: 257 tokens of 1,408 features from an image of 224 x 224. transformers calls
``ln_vision`` ``post_layernorm``; the tokens are its output.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from models.checkpoint_files import CHECKPOINTS, Checkpoint, find_checkpoint
from models.encoders.base import Encoder
from models.encoders.pixels import CLIP, IMAGENET, normalised_square
from models.encoders.remembered import remembered_sha256, stamp_of

PREFIX = "vision_model."


class Blip2VisionEncoder(Encoder):
    """Tokens of the image encoder of a BLIP-2 or InstructBLIP checkpoint; only its shards are fetched and opened.

    Images are resized to a square, without cropping (as the released code does), and normalised.

    Args:
        checkpoint: ``instructblip``, ``blip2``, or a folder with a checkpoint saved by transformers.
        init: ``pretrained``, or ``random`` for weights that were never trained, drawn with ``seed``; of the sizes in
            the folder's ``config.json``, or ViT-g's.
        normalisation: mean and deviation of ImageNet (QuMATL's image model) or of CLIP (its video model, and what the
            encoder was trained with).
        interpolation: how images are resized; the released code leaves it at torchvision's default, bilinear.
        class_token: whether the class token, the first one, is kept.
        precision: number format in which the network computes; the paper's is half.
        seed: of random weights.

    Raises:
        FileNotFoundError: a file of the checkpoint that cannot be had; the message names it and where to put it.
        ValueError: a checkpoint that is damaged, of another kind, or does not fill the network.
    """

    version = "1"
    name = "blip2_vision"

    def __init__(
        self,
        checkpoint: str = "instructblip",
        init: Literal["pretrained", "random"] = "pretrained",
        normalisation: Literal["imagenet", "clip"] = "imagenet",
        interpolation: Literal["bilinear", "bicubic"] = "bilinear",
        class_token: bool = True,
        precision: Literal["float32", "float16"] = "float32",
        seed: int = 0,
    ) -> None:
        self.body = _random(checkpoint, seed) if init == "random" else _pretrained(checkpoint)
        self.body.eval().requires_grad_(False).to(getattr(torch, precision))
        config: Any = self.body.config
        self.precision, self.interpolation, self.size = precision, interpolation, int(config.image_size)
        self.mean, self.std = IMAGENET if normalisation == "imagenet" else CLIP
        self.skipped = 0 if class_token else 1
        self.device = "cpu"
        self.n_tokens = (self.size // config.patch_size) ** 2 + 1 - self.skipped
        self.dim = int(config.hidden_size)

    @classmethod
    def identified(cls, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """``checkpoint`` becomes the SHA-256 of the files in the folder that hold the encoder; a name stays."""
        if arguments["checkpoint"] in CHECKPOINTS or arguments["init"] == "random":
            return arguments
        found = find_checkpoint(arguments["checkpoint"])
        files = ["config.json", *sorted(set(_places(found).values()))]
        return {**arguments, "checkpoint": [f"sha256:{remembered_sha256(found.file(file))}" for file in files]}

    @classmethod
    def weights_stamp(cls, name: str, arguments: dict[str, Any]) -> Any:
        """Places, sizes and times of change of the checkpoint's files; None where they are not on this machine."""
        if arguments["init"] == "random" and arguments["checkpoint"] in CHECKPOINTS:
            return "random"
        try:
            found = find_checkpoint(arguments["checkpoint"])
            if arguments["init"] == "random":
                return ["random", stamp_of(found.file("config.json"))]
            files = ["config.json", *sorted(set(_places(found, fetch=False).values()))]
            return [stamp_of(found.file(file, fetch=False)) for file in files]
        except (OSError, ValueError):
            return None

    def to(self, device: str) -> Blip2VisionEncoder:
        """Computes on ``device`` from now on; the tokens still come back on the CPU."""
        self.body.to(device)
        self.device = device
        return self

    @torch.no_grad()
    def tokens(self, images: Tensor) -> Tensor:
        """Tokens ``[B, n_tokens, dim]`` float32 of ``images [B, 1 or 3, H, W]`` uint8, on the CPU."""
        x = normalised_square(images.to(self.device), self.size, self.interpolation, self.mean, self.std)
        found = self.body(pixel_values=x.to(getattr(torch, self.precision))).last_hidden_state
        return found[:, self.skipped :].float().cpu().contiguous()

    def state(self) -> dict[str, Tensor]:
        """Parameters and buffers of the network."""
        return dict(self.body.state_dict())

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Replaces all parameters and buffers."""
        self.body.load_state_dict(dict(state))

    def preprocessing(self) -> dict[str, Any]:
        """Size, interpolation, mean, deviation, number format, heads, and whether the class token is left out."""
        config: Any = self.body.config
        return {
            "size": self.size,
            "interpolation": self.interpolation,
            "mean": list(self.mean),
            "std": list(self.std),
            "precision": self.precision,
            "heads": config.num_attention_heads,
            "activation": config.hidden_act,
            "eps": config.layer_norm_eps,
            "skipped_tokens": self.skipped,
        }


# --- weights --------------------------------------------------------------------------------------


def _random(checkpoint: str, seed: int) -> nn.Module:
    from transformers import Blip2VisionConfig, Blip2VisionModel

    sizes = {} if checkpoint in CHECKPOINTS else _sizes(checkpoint)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        body: nn.Module = Blip2VisionModel(Blip2VisionConfig(**sizes))
        # transformers draws with a deviation of 1e-10, with which every image has the same tokens
        for parameter in body.parameters():
            if parameter.ndim > 1:
                nn.init.trunc_normal_(parameter, std=0.02)
    return body


def _pretrained(checkpoint: str) -> nn.Module:
    from transformers import Blip2VisionConfig, Blip2VisionModel

    # without memory of its own: it takes over the tensors that are read
    with torch.device("meta"):
        body: nn.Module = Blip2VisionModel(Blip2VisionConfig(**_sizes(checkpoint)))
    source = find_checkpoint(checkpoint)
    found = {key.removeprefix(PREFIX): tensor for key, tensor in source.read(_places(source)).items()}
    own = body.state_dict()
    wrong = [key for key, value in own.items() if key not in found or found[key].shape != value.shape]
    if wrong or found.keys() - own.keys():
        odd = [*wrong, *sorted(found.keys() - own.keys())]
        raise ValueError(
            f"the image encoder of the checkpoint {checkpoint} and its config.json do not fit; missing, of another "
            f"shape or left over: {', '.join(odd[:3])}{', ...' * (len(odd) > 3)}. Give files of one checkpoint"
        )
    body.load_state_dict({key: value.float() for key, value in found.items()}, assign=True)
    return body


def _places(checkpoint: Checkpoint, fetch: bool = True) -> dict[str, str]:
    """Each tensor of the image encoder -> the file that holds it."""
    return checkpoint.chosen(checkpoint.index(fetch), PREFIX)


def _sizes(checkpoint: str) -> dict[str, Any]:
    found = find_checkpoint(checkpoint).config()
    if "vision_config" not in found:
        raise ValueError(f"the config.json of {checkpoint} has no 'vision_config': it is no BLIP-2 or InstructBLIP")
    return {key: value for key, value in dict(found["vision_config"]).items() if key != "model_type"}
