"""Real weights from a folder in the Hugging Face layout: `config.json` and safetensors.

Only safetensors are read: a pickle checkpoint can execute code. Every tensor in the file must be one that
the model has, or a constant buffer of its type; a missing or unknown one is refused by name. Tensors are read
and converted one by one, so that no second copy of the model stands in memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from variants.config import GPTConfig
from variants.described import gpt_config
from variants.errors import UserError, one_line
from variants.hf_config import HfConfig, read_json
from variants.model import GPT, empty_model
from variants.rope import rope_tables
from variants.stored_names import Names, Piece


def load_model(
    folder: Path,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
    positions: int | None = None,
) -> GPT:
    """The model stored in `folder`, for its limit of positions or for the first `positions` of them.

    Raises UserError naming the file, tensor or setting that is wrong.
    """
    hf_config = HfConfig.of(read_json(folder / "config.json"), str(folder / "config.json"))
    config = gpt_config(hf_config, positions)
    assert hf_config.family.names is not None  # gpt_config refuses a type without
    model = empty_model(config)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    if config.tied_head:
        del parameters["lm_head.weight"]
    whole = _Checkpoint(hf_config.family.names, config, parameters, folder).read(dtype, device)
    if config.tied_head:
        whole["lm_head.weight"] = whole["wte.weight"]
    if config.rope is not None:
        whole["rope"] = rope_tables(config).to(dtype=dtype, device=device)
    model.load_state_dict(whole, assign=True)
    if config.tied_head:
        model.lm_head.weight = model.wte.weight
    return model.requires_grad_(False).eval()


def stored_as(model: GPT, names: Names, wanted: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
    """Those of the `wanted` tensors that are weights, as a checkpoint of this type keeps them."""
    layout = _Layout(names, model.config, dict(model.named_parameters(remove_duplicate=False)))
    for stored in wanted:
        name = stored.removeprefix(names.prefix)
        if not re.fullmatch(names.constant, name):
            yield stored, layout.stored(name)


@dataclass(frozen=True)
class _Layout:
    """How a checkpoint names and divides the parameters of ours, given by name."""

    names: Names
    config: GPTConfig
    parameters: Mapping[str, Tensor]

    def _place(self, name: str) -> Piece:
        """The parameter of ours that this tensor is rows of; of no name where there is none."""
        module, _, last = name.rpartition(".")
        if module in self.names.outer:
            return Piece(f"{self.names.outer[module]}.{last}")
        numbered = re.fullmatch(rf"{self.names.layers}\.(\d+)\.(.+)", module)
        if numbered is None or numbered[2] not in self.names.block:
            return Piece("")
        ours, parts = self.names.block[numbered[2]]
        return Piece(f"blocks.{numbered[1]}.{ours}.{last}", parts)

    def _parts(self, ours: str) -> tuple[str, ...]:
        """What a parameter is made of, one below the other."""
        inward = ("gate", "up") if self.config.gated else ("up",)
        return {"qkv": ("q", "k", "v"), "up": inward}.get(ours.split(".")[-2], ("",))

    def _rows(self, ours: str, part: str) -> int:
        config = self.config
        sizes = {"q": config.q_dim, "k": config.kv_dim, "v": config.kv_dim}
        sizes |= {"gate": config.n_inner, "up": config.n_inner}
        return sizes.get(part, self.parameters[ours].size(0))

    def _turned(self, name: str, tensor: Tensor) -> Tensor:
        """From the layout of the checkpoint to ours, or back."""
        inside = name.startswith(f"{self.names.layers}.") and tensor.dim() == 2
        return tensor.t() if self.names.transposed and inside else tensor

    def stored(self, name: str) -> Tensor:
        """What a checkpoint keeps under this name. Raises UserError where nothing of ours is that."""
        ours, parts = self._place(name)
        if ours not in self.parameters:
            raise UserError(f"{name} is no weight of our decoder")
        tensor, of = self.parameters[ours], self._parts(ours)
        rows = (
            [tensor[number :: len(of)] for number in range(len(of))]
            if "gate" in of
            else tensor.split([self._rows(ours, part) for part in of])
        )
        piece = dict(zip(of, rows, strict=True))
        return self._turned(name, torch.cat([piece[part] for part in parts])) - self._gain_left_out(name)

    def _gain_left_out(self, name: str) -> int:
        """What a checkpoint of this type does not say of a norm's gains."""
        return int(self.names.centred and name.endswith("norm.weight"))

    @staticmethod
    def _parameter(pieces: dict[str, Tensor], parts: tuple[str, ...]) -> Tensor:
        """One tensor of its pieces; the rows of gate and up alternate, as `Block` says."""
        rows = [pieces[part] for part in parts]
        if len(rows) == 1:
            return rows[0]
        return torch.stack(rows, dim=1).flatten(0, 1) if "gate" in parts else torch.cat(rows)


@dataclass(frozen=True)
class _Checkpoint(_Layout):
    """A folder of stored tensors; the parameters that they must make are on meta."""

    folder: Path

    def read(self, dtype: torch.dtype, device: str | torch.device) -> dict[str, Tensor]:
        """Every parameter of ours. Raises UserError for a tensor that is unknown, wrong or missing."""
        pieces: dict[str, dict[str, Tensor]] = {name: {} for name in self.parameters}
        for file, stored, tensor in _tensors(self.folder):
            name = stored.removeprefix(self.names.prefix)
            if re.fullmatch(self.names.constant, name) or (
                self.config.tied_head and name == "lm_head.weight"
            ):
                continue
            ours, parts = self._place(name)
            if ours not in self.parameters:
                raise UserError(f"{file}: unknown tensor {stored}; config.json describes no such weight")
            tensor = self._turned(name, tensor)
            if any(part in pieces[ours] for part in parts):
                raise UserError(f"{file}: {stored} is there twice, with and without {self.names.prefix}")
            rows = [self._rows(ours, part) for part in parts]
            _check(tensor, (sum(rows), *self.parameters[ours].shape[1:]), f"{file}: {stored}")
            if left_out := self._gain_left_out(name):
                tensor = tensor.float() + left_out
            ready = tensor.to(dtype=dtype, device=device).contiguous()
            if not bool(torch.isfinite(ready).all()):
                raise UserError(f"{file}: {stored} holds NaN or infinite values (as {dtype})")
            if name.endswith(".weight") and not bool(ready.any()):
                raise UserError(f"{file}: {stored} holds zeros only: nothing can be proven or timed with it")
            pieces[ours].update(zip(parts, ready.split(rows), strict=True))
        parts_of = {name: self._parts(name) for name in self.parameters}
        missing = [
            " ".join([name, part]).strip()
            for name, parts in parts_of.items()
            for part in parts
            if part not in pieces[name]
        ]
        if missing:
            raise UserError(f"{self.folder}: {len(missing)} tensors are missing, the first is {missing[0]}")
        return {name: self._parameter(pieces.pop(name), parts) for name, parts in parts_of.items()}


def _check(tensor: Tensor, expected: tuple[int, ...], where: str) -> None:
    if tuple(tensor.shape) != expected:
        raise UserError(f"{where} has shape {tuple(tensor.shape)}, config.json asks for {expected}")
    if not tensor.is_floating_point():
        raise UserError(f"{where} holds {tensor.dtype}; floating-point weights are needed")


def _tensors(folder: Path) -> Iterator[tuple[Path, str, Tensor]]:
    """Every tensor of the checkpoint with the file that holds it, one at a time."""
    for file in _files(folder):
        try:
            with safe_open(file, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118
                    yield file, name, opened.get_tensor(name)
        except Exception as error:  # the library's own, of its header, or of a type that torch lacks
            raise UserError(f"{file} cannot be read: {one_line(error)}") from None


def _files(folder: Path) -> list[Path]:
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.exists():
        return [single]
    if index.exists():
        file_of = read_json(index, "a safetensors index").get("weight_map")
        if not isinstance(file_of, dict) or not all(isinstance(name, str) for name in file_of.values()):
            raise UserError(f"{index} is not a safetensors index (weight_map: an object of file names)")
        names = sorted(set(file_of.values()))
        if any(Path(name).name != name or name == ".." for name in names):
            raise UserError(f"{index} names files outside {folder}")
        return [folder / name for name in names]
    pickles = sorted([*folder.glob("*.bin"), *folder.glob("*.pt"), *folder.glob("*.pth")])
    if pickles:
        raise UserError(
            f"{pickles[0]} is a pickle, which can execute code, and is not read; convert it with "
            "transformers: AutoModelForCausalLM.from_pretrained(...).save_pretrained(folder)"
        )
    raise UserError(f"{folder} holds no model.safetensors")
