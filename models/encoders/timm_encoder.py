"""Any timm network, frozen, as an encoder: its last tokens or its last feature map.

Weights come from timm's hub (or its local cache), or from a file; random weights exist only as ``init="random"``.
The network is built at the size it was trained at, loaded completely, and only then set to another image size.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from models.encoders.base import Encoder
from models.encoders.pixels import IMAGENET, Channels, normalised_square
from models.encoders.remembered import remembered_sha256, stamp_of


class TimmEncoder(Encoder):
    """Tokens of a frozen timm network, from its ``forward_features``.

    Vision transformers give their tokens after the last norm, the class token and any registers first; networks
    with a feature map give its places row by row. Images are resized to a square, without cropping, and then
    normalised; grey ones are repeated in three channels.

    Args:
        model: timm's name, e.g. ``eva_giant_patch14_clip_224.laion400m``.
        pretrained: True: timm's weights for this name; a path: that file (``.safetensors``, or a state dict that
            ``torch.load`` reads without unpickling).
        init: ``pretrained``, or ``random`` for weights that were never trained, drawn with ``seed``.
        image_size: side in pixels; None: the size the network was trained at.
        class_token: whether the class token and registers are kept, if there are any.
        normalisation: ``own`` uses the mean and deviation that the network was trained with, ``imagenet``
            ImageNet's.
        seed: of random weights.

    Raises:
        FileNotFoundError: weights that cannot be had; the message names the file and where to put it.
        ValueError: weights that do not fill the network; arguments that contradict each other.
    """

    version = "1"

    def __init__(
        self,
        model: str,
        pretrained: bool | str = True,
        init: Literal["pretrained", "random"] = "pretrained",
        image_size: int | None = None,
        class_token: bool = True,
        normalisation: Literal["own", "imagenet"] = "own",
        seed: int = 0,
    ) -> None:
        import timm

        self.name, self.device = model, "cpu"
        self.body = _build(model, pretrained, init, seed)
        config = timm.data.resolve_data_config({}, model=self.body)
        self.size = int(image_size or config["input_size"][-1])
        self.interpolation = "bilinear" if config["interpolation"] == "bilinear" else "bicubic"
        own: tuple[Channels, Channels] = (tuple(config["mean"]), tuple(config["std"]))
        self.mean, self.std = own if normalisation == "own" else IMAGENET
        self.skipped = 0 if class_token else int(getattr(self.body, "num_prefix_tokens", 0))
        if self.size != config["input_size"][-1] and hasattr(self.body, "set_input_size"):
            self.body.set_input_size(img_size=self.size)  # type: ignore[operator]
        self.body.eval().requires_grad_(False)
        self.n_tokens, self.dim = self.tokens(torch.zeros(1, 3, self.size, self.size, dtype=torch.uint8)).shape[1:]

    @classmethod
    def identified(cls, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """``pretrained`` becomes the SHA-256 of the file, or the place on timm's hub that the name stands for."""
        import timm

        pretrained = arguments["pretrained"]
        if isinstance(pretrained, str):
            pretrained = f"sha256:{remembered_sha256(_there(Path(pretrained)))}"
        elif pretrained and arguments["init"] == "pretrained":
            config = timm.get_pretrained_cfg(name)
            pretrained = config and (config.hf_hub_id or config.url)
        return {**arguments, "pretrained": pretrained}

    @classmethod
    def weights_stamp(cls, name: str, arguments: dict[str, Any]) -> Any:
        """Place, size and time of change of the weight file; None where it is not on this machine."""
        import timm
        from huggingface_hub import try_to_load_from_cache

        if arguments["init"] == "random":
            return "random"
        if isinstance(arguments["pretrained"], str):
            return stamp_of(_there(Path(arguments["pretrained"])))
        config = timm.get_pretrained_cfg(name)
        if config is None or not config.hf_hub_id:
            return None
        for file in filter(None, (config.hf_hub_filename, "model.safetensors", "pytorch_model.bin")):
            found = try_to_load_from_cache(config.hf_hub_id, file)
            if isinstance(found, str):
                return stamp_of(Path(found))
        return None

    def to(self, device: str) -> TimmEncoder:
        """Computes on ``device`` from now on; the tokens still come back on the CPU."""
        self.body.to(device)
        self.device = device
        return self

    @torch.no_grad()
    def tokens(self, images: Tensor) -> Tensor:
        """Tokens ``[B, n_tokens, dim]`` float32 of ``images [B, 1 or 3, H, W]`` uint8, on the CPU."""
        features = self.body.forward_features(self.prepare(images.to(self.device)))  # type: ignore[operator]
        if features.ndim == 4:
            channels_last = getattr(self.body, "output_fmt", None) == "NHWC"
            features = features.flatten(1, 2) if channels_last else features.flatten(2).transpose(1, 2)
        if features.ndim != 3:
            raise ValueError(f"{self.name} gives features of shape {tuple(features.shape)}: no tokens, no feature map")
        return features[:, self.skipped :].float().cpu().contiguous()

    def prepare(self, images: Tensor) -> Tensor:
        """Images ``[B, 1 or 3, H, W]`` uint8, resized to ``[B, 3, size, size]`` and normalised."""
        return normalised_square(images, self.size, self.interpolation, self.mean, self.std)

    def state(self) -> dict[str, Tensor]:
        """Parameters and buffers of the network."""
        return dict(self.body.state_dict())

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Replaces all parameters and buffers."""
        self.body.load_state_dict(dict(state))

    def preprocessing(self) -> dict[str, Any]:
        """Size, interpolation, mean, deviation, and how many tokens are left out."""
        return {
            "size": self.size,
            "interpolation": self.interpolation,
            "mean": list(self.mean),
            "std": list(self.std),
            "skipped_tokens": self.skipped,
        }


# --- weights --------------------------------------------------------------------------------------


def _build(model: str, pretrained: bool | str, init: str, seed: int) -> nn.Module:
    if init == "random":
        if isinstance(pretrained, str):
            raise ValueError(f"init='random' contradicts pretrained={pretrained!r}; leave one of them out")
        return _random(model, seed)
    if pretrained is False:
        raise ValueError("pretrained=False leaves no weights; untrained ones are named init='random'")
    if isinstance(pretrained, str):
        body = _random(model, seed)
        fill(body, _there(Path(pretrained)))
        return body
    return _from_hub(model)


def _random(model: str, seed: int) -> nn.Module:
    import timm

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        body: nn.Module = timm.create_model(model, pretrained=False, num_classes=0)
    return body


def _from_hub(model: str) -> nn.Module:
    import timm

    config = timm.get_pretrained_cfg(model)
    if config is None or not (config.hf_hub_id or config.url or config.file):
        raise ValueError(f"timm has no weights for {model!r}; give a file as pretrained='<path>' or name init='random'")
    try:
        body: nn.Module = timm.create_model(model, pretrained=True, num_classes=0)
    except Exception as error:
        raise FileNotFoundError(_where_weights_are(model, config)) from error
    return body


def _where_weights_are(model: str, config: Any) -> str:
    """One sentence: which file, from where, and where to put it."""
    source = f"hub repository {config.hf_hub_id!r}" if config.hf_hub_id else f"address {config.url}"
    file = config.hf_hub_filename or "model.safetensors"
    return (
        f"the weights of encoder {model!r} are not in the local hub cache and could not be downloaded: fetch the file "
        f"{file!r} of the {source}, put it anywhere and give its path as pretrained='<path>' "
        f"(or run once with a network, which puts it into the hub cache)"
    )


def _there(path: Path) -> Path:
    if not path.is_file():
        raise FileNotFoundError(f"no file {path} with encoder weights; give the path of a .safetensors or .pt file")
    return path


def fill(body: nn.Module, path: Path) -> None:
    """Loads the file into the network; every tensor of the network must be in it (a classifier may be left over).

    Names are translated by the network's own rules in timm, so that released formats can be read too.

    Raises:
        ValueError: a file without some of the tensors, or that cannot be read.
    """
    found = _read(path)
    own = body.state_dict()
    if not own.keys() <= found.keys():
        translate = getattr(sys.modules[type(body).__module__], "checkpoint_filter_fn", None)
        found = translate(found, body) if translate else found
    missing = [key for key, value in own.items() if key not in found or found[key].shape != value.shape]
    if missing:
        raise ValueError(
            f"{path} fills only {len(own) - len(missing)} of the {len(own)} tensors of {type(body).__name__}; "
            f"missing or of another shape: {', '.join(missing[:3])}{', ...' * (len(missing) > 3)}. "
            "Give the file of this very model"
        )
    body.load_state_dict({key: found[key] for key in own})


def _read(path: Path) -> dict[str, Tensor]:
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"{path} cannot be read as weights ({type(error).__name__}: {reason})") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path} holds a {type(found).__name__}, not a state dict")
    nested = found.get("state_dict", found.get("model", found))
    return dict(nested if isinstance(nested, dict) else found)
