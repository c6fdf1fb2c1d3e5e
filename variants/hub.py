"""Which folder holds a model by name: one that comes along (`TRAINED`), or `hub:ORG/NAME[@REVISION]`, fetched
by huggingface_hub or found in its cache.

No torch here. Configuration, tokenizer and safetensors alone are fetched: nothing among them is code.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from variants.errors import UserError, one_line

PREFIX = "hub:"
TRAINED = ("shakespeare",)  # in trained/, each with a README.md that says from what
SETTINGS = ["config.json", "generation_config.json", "tokenizer.json", "*.safetensors.index.json"]
WEIGHTS = ["*.safetensors"]
_COMMIT = re.compile(r"[0-9a-f]{40}")


def fetched(name: str, weights: bool = True) -> str:
    """`hub:ORG/NAME[@REVISION]` -> the same at its commit, whose files are in the cache from now on; another
    kind of name as it is.

    `weights`: not its settings alone. Without a network, what the cache holds of that revision. Raises
    UserError where there is neither, or no package that could fetch it.
    """
    if not name.startswith(PREFIX) or (_COMMIT.fullmatch(_revision(name) or "") and _in_cache(name)):
        return name
    folder = _snapshot(name, allow_patterns=SETTINGS + WEIGHTS * weights)
    return f"{name.partition('@')[0]}@{folder.name}"


def folder_of(name: str) -> Path:
    """Where the files of a name that was `fetched` lie; an unknown name is that of the folder itself."""
    if name in TRAINED:
        return Path(__file__).parent / "trained" / name
    if not name.startswith(PREFIX):
        return Path(name)
    return _snapshot(name, allow_patterns=SETTINGS, local_files_only=True)


def repository(name: str) -> str:
    """`hub:ORG/NAME[@REVISION]` -> `ORG/NAME`."""
    return name.removeprefix(PREFIX).partition("@")[0]


def _in_cache(name: str) -> bool:
    try:
        return any(folder_of(name).glob("*.safetensors"))
    except UserError:
        return False


def _revision(name: str) -> str | None:
    return name.partition("@")[2] or None


def _snapshot(name: str, **options: Any) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise UserError(
            f"--model {name} needs the package huggingface_hub: pip install huggingface_hub"
        ) from None
    try:
        return Path(snapshot_download(repository(name), revision=_revision(name), **options))
    except (OSError, ValueError, RuntimeError) as error:  # all that it raises is one of these
        why = one_line(error)
        raise UserError(
            f"--model {name}: not in the cache, and the hub does not give it ({why[:200]})"
        ) from None
