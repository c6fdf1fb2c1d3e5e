"""How is `--model shakespeare` made? A byte-level GPT-2, trained in minutes on one core on a text.

python examples/train_bytes.py FOLDER TEXT.txt [TEXT.txt ...] [--steps N] [--seconds S]

Stops after so many seconds and goes on when it is called again. The weights in FOLDER are bfloat16 and stand
in the layout of Hugging Face; `training.pt` beside them is for going on only.
"""

import argparse
import math
import shutil
import sys
import time
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from torch.nn import functional as F

from experiments.shared.demo import attentive
from profiling.peers.checkpoint import hugging_face
from variants.config import GPTConfig
from variants.model import GPT, random_model
from variants.slots.head import all_positions

CONFIG = GPTConfig(n_layer=4, n_head=4, n_embd=128, n_ctx=256, vocab_size=256)
BATCH, PEAK, WARM_UP, DECAY = 2, 1.5e-3, 100, 0.1  # texts, learning rate, steps, weight decay
HELD_OUT = 0.05  # of each text, at its end


def texts(files: list[str]) -> tuple[Tensor, Tensor]:
    """Bytes to learn from, and those that are held out, uint8."""
    parts = []
    for file in files:
        content = Path(file).read_bytes().replace(b"\r\n", b"\n")
        cut = int(len(content) * (1 - HELD_OUT))
        parts.append((content[:cut], content[cut:]))
    learnt, held_out = (bytearray(b"\n\n".join(side)) for side in zip(*parts, strict=True))
    return torch.frombuffer(learnt, dtype=torch.uint8), torch.frombuffer(held_out, dtype=torch.uint8)


def loss(model: GPT, tokens: Tensor) -> Tensor:
    """Mean nats per byte of tokens int64 [B,T+1], each predicted from those before it."""

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    logits = model(tokens[:, :-1], torch.arange(tokens.size(1) - 1), attend, all_positions)
    return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


@torch.no_grad()
def bits_per_byte(model: GPT, text: Tensor) -> float:
    """Of a text, cut into pieces of the model's context."""
    size = model.config.n_ctx + 1
    pieces = text[: len(text) // size * size].view(-1, size).long()
    return float(loss(model, pieces)) / math.log(2)


def rate(step: int, steps: int) -> float:
    """A warm-up, then half a cosine down to a tenth."""
    if step < WARM_UP:
        return PEAK * (step + 1) / WARM_UP
    return PEAK * (0.55 + 0.45 * math.cos(math.pi * (step - WARM_UP) / max(1, steps - WARM_UP)))


def waves(config: GPTConfig) -> Tensor:
    """Positions [n_ctx,C] to start from, as of Vaswani et al. (2017), as large as the token table.

    Drawn ones share nothing: each of 256 would have to learn by itself where the letter before stands.
    """
    turns = 10_000.0 ** (-torch.arange(0, config.n_embd, 2) / config.n_embd)
    angles = torch.arange(config.n_ctx)[:, None] * turns
    return 0.02 * 2**0.5 * torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)


def train(model: GPT, text: Tensor, state: Path, steps: int, seconds: float) -> int:
    """Train on from `state`, if there is one, for so long at most, and keep the state. The steps done."""
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": decayed, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}]
    optimiser, done = torch.optim.AdamW(groups, betas=(0.9, 0.99)), 0
    if state.exists():
        kept = torch.load(state, weights_only=True)
        model.load_state_dict(kept["model"])
        optimiser.load_state_dict(kept["optimiser"])
        done = kept["done"]
    began = time.monotonic()
    for step in range(done, steps):
        if time.monotonic() - began > seconds:
            break
        size = min(model.config.n_ctx, len(text) - 2)
        starts = torch.randint(len(text) - size, (BATCH,), generator=torch.Generator().manual_seed(step))
        batch = torch.stack([text[at : at + size + 1] for at in starts]).long()
        for group in optimiser.param_groups:
            group["lr"] = rate(step, steps)
        optimiser.zero_grad()
        loss(model, batch).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        done = step + 1
    torch.save({"model": model.state_dict(), "optimiser": optimiser.state_dict(), "done": done}, state)
    return done


def bytes_as_tokens() -> Tokenizer:
    """A tokenizer without merges, in which the number of a token is its byte."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]  # GPT-2 shows the others as 256 and up
    shown = visible + [b for b in range(256) if b not in visible]
    signs = {byte: chr(byte if i < len(visible) else 256 + i - len(visible)) for i, byte in enumerate(shown)}
    tokenizer = Tokenizer(models.BPE({sign: byte for byte, sign in signs.items()}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def main(*words: str) -> None:
    """Train, write the folder anew, and say how well the weights in it predict the bytes held out."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("text", nargs="+")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--seconds", type=float, default=math.inf)
    arguments = parser.parse_args(words)
    torch.set_num_threads(1)
    learnt, held_out = texts(arguments.text)
    model = attentive(random_model(CONFIG))
    model.wpe.weight.copy_(waves(CONFIG))
    model.requires_grad_(True).train()
    folder = arguments.folder
    folder.mkdir(parents=True, exist_ok=True)
    done = train(model, learnt, folder / "training.pt", arguments.steps, arguments.seconds)
    stored = model.requires_grad_(False).eval().bfloat16()
    hugging_face(stored, folder / "new")
    for name in ("config.json", "model.safetensors"):
        (folder / "new" / name).replace(folder / name)
    shutil.rmtree(folder / "new")
    bytes_as_tokens().save(str(folder / "tokenizer.json"))
    said = bits_per_byte(stored.float(), held_out)
    print(f"{done} of {arguments.steps} steps: {said:.3f} bits per byte of {len(held_out):,} held out")


if __name__ == "__main__":
    main(*sys.argv[1:])
