"""Text to tokens and back, where a tokenizer lies beside the weights."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from variants.errors import UserError, one_line

END_OF_TEXT = "<|endoftext|>"
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


def end_of_text(tokenizer: Any | None) -> int | None:
    """The token after which a GPT-2 model's text is over; None where no tokenizer names one."""
    token: int | None = None if tokenizer is None else tokenizer.token_to_id(END_OF_TEXT)
    return token


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
