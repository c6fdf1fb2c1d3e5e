"""What only a Llama-family decoder can get wrong is caught: each fault is planted and must break parity."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

pytest.importorskip("transformers")

from hf_checkpoints import checkpoint

import variants.model
from variants import rope
from variants.config import GPTConfig, Rope
from variants.decoder import Decoder
from variants.ladder import ladder
from variants.model import Block
from variants.slots import mask
from variants.weights import _Checkpoint, load_model

TOKENS = torch.randint(199, (1, 100), generator=torch.Generator().manual_seed(4))
Patch = pytest.MonkeyPatch


def neighbours_turned(patch: Patch) -> None:
    """Pairs (d, d + 1) as in GPT-J instead of (d, d + D/2)."""

    def rotate(x: Tensor, turn: Tensor) -> Tensor:
        cos, sin = turn[:, None, 0], turn[:, None, 1]
        left, right = x[..., 0::2], x[..., 1::2]
        return torch.stack([left * cos - right * sin, right * cos + left * sin], dim=-1).flatten(-2)

    patch.setattr(variants.model, "rotate", rotate)


def one_position_late(patch: Patch) -> None:
    """From the second token on: all of them late would turn queries and keys alike, which changes nothing."""
    real = rope.rope_table

    def late(given: Rope, n: int, width: int) -> Tensor:
        table = real(given, n + 1, width)
        return torch.cat([table[:1], table[2:]])

    patch.setattr(rope, "rope_table", late)


def stretching_dropped(patch: Patch) -> None:
    real = rope.rope_table
    patch.setattr(rope, "rope_table", lambda given, n, width: real(Rope(given.theta), n, width))


def normed_after_the_turn(patch: Patch) -> None:
    def heads(self: Any, x: Tensor, turn: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        B, T, _ = x.shape
        H, G, D = self.n_head, self.n_kv_head, self.head_dim
        q, k, v = self.qkv(x).view(B, T, H + 2 * G, D).split([H, G, G], dim=2)
        q, k = self.q_norm(rope.rotate(q, turn)), self.k_norm(rope.rotate(k, turn))
        return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)

    patch.setattr(Block, "heads", heads)


def gate_and_up_exchanged(patch: Patch) -> None:
    def activated(self: Any, x: Tensor) -> Tensor:
        gate, up = x.unflatten(-1, (-1, 2)).unbind(-1)
        return gate * F.silu(up)

    patch.setattr(Block, "activated", activated)


def rows_not_alternating(patch: Patch) -> None:
    def joined(pieces: dict[str, Tensor], parts: tuple[str, ...]) -> Tensor:
        return torch.cat([pieces[part] for part in parts])

    patch.setattr(_Checkpoint, "_parameter", staticmethod(joined))


def keys_not_turned(patch: Patch) -> None:
    real = rope.rotate

    def rotate(x: Tensor, turn: Tensor) -> Tensor:
        return torch.cat([real(x[:, :, :6], turn), x[:, :, 6:]], dim=2)

    patch.setattr(variants.model, "rotate", rotate)


def heads_share_in_turns(patch: Patch) -> None:
    """Query head h reads KV head h mod G instead of h div (H / G)."""
    real = Block.heads

    def heads(self: Any, x: Tensor, turn: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = real(self, x, turn)
        H, G = self.n_head, self.n_kv_head
        return q[:, [h % (H // G) * G + h // (H // G) for h in range(H)]], k, v

    patch.setattr(Block, "heads", heads)


def norm_subtracts_the_mean(patch: Patch) -> None:
    real = F.rms_norm
    patch.setattr(F, "rms_norm", lambda x, *rest: real(x - x.mean(-1, keepdim=True), *rest))


def window_one_too_wide(patch: Patch) -> None:
    real = mask.triangle
    patch.setattr(mask, "triangle", lambda ones, window: real(ones, window and window + 1))


def every_layer_turned(patch: Patch) -> None:
    patch.setattr(GPTConfig, "rope_of", lambda self, layer: self.rope)


def embedding_not_scaled(patch: Patch) -> None:
    patch.setattr("variants.described.GPTConfig", lambda **facts: GPTConfig(**facts | {"embed_scale": 1.0}))


def gains_as_they_are_stored(patch: Patch) -> None:
    patch.setattr(_Checkpoint, "_gain_left_out", lambda self, name: 0)


def another_activation(patch: Patch) -> None:
    patch.setattr(Block, "_activated", lambda self, x: F.silu(x))


def nothing_normed_behind(patch: Patch) -> None:
    real = Block.forward

    def forward(self: Any, *given: Any) -> Tensor:
        self.out_norm = self.down_norm = torch.nn.Identity()
        return real(self, *given)

    patch.setattr(Block, "forward", forward)


FAULTS: list[tuple[Callable[[Patch], None], str]] = [
    (neighbours_turned, "llama"),
    (one_position_late, "llama"),
    (stretching_dropped, "llama3"),
    (stretching_dropped, "llama yarn"),
    (stretching_dropped, "llama linear"),
    (normed_after_the_turn, "qwen3"),
    (gate_and_up_exchanged, "llama"),
    (rows_not_alternating, "qwen2"),
    (keys_not_turned, "llama"),
    (heads_share_in_turns, "llama"),
    (norm_subtracts_the_mean, "llama"),
    (window_one_too_wide, "mistral windows"),
    (window_one_too_wide, "gemma3"),
    (every_layer_turned, "smollm3"),
    (every_layer_turned, "gemma3"),
    (embedding_not_scaled, "gemma3"),
    (gains_as_they_are_stored, "gemma3"),
    (another_activation, "gemma3"),
    (nothing_normed_behind, "gemma3"),
]


def difference(theirs: Any, folder: Path) -> float:
    with torch.inference_mode():
        expected = theirs(TOKENS).logits
    got = Decoder.of(ladder()["naive"], load_model(folder)).extend(TOKENS)
    return float((got - expected).abs().max())


@pytest.mark.parametrize(("plant", "name"), FAULTS, ids=lambda value: getattr(value, "__name__", value))
def test_a_planted_fault_breaks_parity(
    plant: Callable[[Patch], None], name: str, tmp_path: Path, monkeypatch: Patch
) -> None:
    theirs = checkpoint(tmp_path, name)
    assert difference(theirs, tmp_path) < 1e-5
    plant(monkeypatch)
    assert difference(theirs, tmp_path) > 1e-3


def test_the_first_position_is_not_turned_and_theta_counts() -> None:
    table = rope.rope_table(Rope(1e4), 16, 8)
    assert table.shape == (16, 2, 4) and torch.equal(table[0], torch.tensor([[1.0] * 4, [0.0] * 4]))
    assert not torch.equal(table, rope.rope_table(replace(Rope(1e4), theta=1e5), 16, 8))
