"""Text to tokens and back, where a tokenizer lies beside the weights."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from reprlib import repr as shortened
from typing import Any

from experiments.shared.cli import integers
from variants.config import GPTConfig
from variants.errors import UserError, one_line
from variants.hf_config import read_json

END_OF_TEXT = "<|endoftext|>"
RANDOM_PROMPT = 10  # tokens
LONGEST_PROMPT = 1 << 24  # characters: far beyond any context, and before memory ends
UNFINISHED = "\ufffd"  # what a tokenizer writes for bytes that do not end a character yet


def load_tokenizer(folder: Path) -> Any | None:
    """The tokenizer beside the weights, or None. Raises UserError for a file that is none."""
    file = folder / "tokenizer.json"
    if not file.is_file():
        return None
    try:
        from tokenizers import Tokenizer
    except ImportError:
        sys.stderr.write(
            "tokenizer.json needs the package tokenizers (pip install tokenizers); printing ids\n"
        )
        return None
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises plain Exception
        raise UserError(f"{file} is not a tokenizer: {one_line(error)}") from None


def encoded(tokenizer: Any, text: str) -> list[int]:
    """Token ids of a text. Raises UserError where the tokenizer cannot say them."""
    try:
        return list(tokenizer.encode(text).ids)
    except Exception as error:  # the library raises plain Exception
        raise UserError(f"tokenizer.json cannot encode the prompt: {one_line(error)}") from None


def ends_of_text(folder: Path, tokenizer: Any | None) -> frozenset[int]:
    """Tokens after which a text is over: those of generation_config.json, else GPT-2's; none where neither
    names one. Raises UserError for a file that names something else."""
    file = folder / "generation_config.json"
    named = read_json(file, "a generation config").get("eos_token_id") if file.is_file() else None
    if named is None:
        token = None if tokenizer is None else tokenizer.token_to_id(END_OF_TEXT)
        return frozenset() if token is None else frozenset([token])
    ids = named if isinstance(named, list) else [named]
    if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
        raise UserError(f"{file}: eos_token_id is {shortened(named)}; a token id or a list of them is needed")
    return frozenset(ids)


def prompt_text(given: str) -> str:
    """TEXT, or what stands in the file of `@FILE`."""
    if not given.startswith("@"):
        return given
    try:
        with Path(given[1:]).open(encoding="utf-8-sig") as file:
            text = file.read(LONGEST_PROMPT + 1)
    except (OSError, ValueError) as error:
        raise UserError(f"--prompt {given}: not a readable text file ({one_line(error)})") from None
    if len(text) > LONGEST_PROMPT:
        raise UserError(
            f"--prompt {given}: more than {LONGEST_PROMPT:,} characters, which no model here takes"
        )
    return text


def add_prompt(parser: argparse.ArgumentParser) -> None:
    """The flags from which `prompt_ids` takes the prompt."""
    prompt = parser.add_mutually_exclusive_group()
    prompt.add_argument(
        "--prompt", metavar="TEXT|@FILE", help="a text, or the file that holds it; needs a tokenizer"
    )
    prompt.add_argument("--prompt-ids", type=integers, metavar="ID,ID", help="token ids (default: 10 random)")


def prompt_ids(arguments: argparse.Namespace, tokenizer: Any | None, config: GPTConfig) -> list[int]:
    """Token ids of the prompt. Raises UserError for one that the model cannot take."""
    if arguments.prompt is not None:
        if tokenizer is None:
            raise UserError("--prompt needs a tokenizer.json in the folder of --model; give --prompt-ids")
        ids = encoded(tokenizer, prompt_text(arguments.prompt))
    elif arguments.prompt_ids is not None:
        ids = list(arguments.prompt_ids)
    else:
        from profiling.gate.oracle import random_stream

        length = min(RANDOM_PROMPT, config.n_ctx // 2)
        ids = random_stream(config.vocab_size, 1, length, arguments.seed)[0].tolist()
    if not 1 <= len(ids) <= config.n_ctx:
        raise UserError(f"the prompt has {len(ids)} tokens; this model takes 1 to {config.n_ctx}")
    beyond = [i for i in ids if not 0 <= i < config.vocab_size]
    if beyond:
        raise UserError(f"token {beyond[0]} is outside this model's vocabulary, 0 to {config.vocab_size - 1}")
    return ids


class Pieces:
    """Tokens as text that can be written at once: a character of several tokens waits for its last."""

    def __init__(self, tokenizer: Any | None) -> None:
        self.tokenizer, self.ids, self.written = tokenizer, list[int](), 0

    def of(self, ids: Sequence[int]) -> str:
        """The text that these tokens add, as far as its characters are whole."""
        if self.tokenizer is None:
            return "".join(f"{i} " for i in ids)
        self.ids += ids
        text: str = self.tokenizer.decode(self.ids, skip_special_tokens=False)
        new = text[self.written :].rstrip(UNFINISHED)
        self.written += len(new)
        return new

    def rest(self) -> str:
        """Characters that no further token ended."""
        if self.tokenizer is None:
            return ""
        text: str = self.tokenizer.decode(self.ids, skip_special_tokens=False)
        return text[self.written :]
