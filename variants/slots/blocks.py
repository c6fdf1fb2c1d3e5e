"""Blocks of keys and values that any number of sequences share: what a paged cache is made of.

A sequence is a list of block numbers. A block may belong to several sequences (a fork, a common prefix) and
is copied before one of them writes into it. A full block can be published under the exact tokens up to its
end; it then outlives its owners until its room is needed, least recently used first. The bookkeeping is the
host's and happens between steps; a step reads block numbers from device memory.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence

from torch import Tensor

from variants.config import GPTConfig
from variants.errors import UserError

BLOCK = 16  # tokens; vLLM's default
SCRATCH = 0  # the block that unused table entries point to: read only where masked, owned by nobody


def blocks_for(tokens: int, size: int = BLOCK) -> int:
    """Blocks that hold this many tokens."""
    return -(-tokens // size)


class BlockPool:
    """`blocks` blocks of `size` tokens: per layer, K and V [blocks + 1, Hkv, size, D], with scratch."""

    def __init__(self, config: GPTConfig, blocks: int, like: Tensor, size: int = BLOCK) -> None:
        shape = (blocks + 1, config.n_kv_head, size, config.head_dim)
        self.k = [like.new_zeros(shape) for _ in range(config.n_layer)]
        self.v = [like.new_zeros(shape) for _ in range(config.n_layer)]
        self.blocks, self.size = blocks, size
        self.owners = [0] * (blocks + 1)  # how many sequences hold a block
        self.free = list(range(blocks, 0, -1))
        self.prefixes: OrderedDict[bytes, int] = OrderedDict()  # least recently used first
        self.published: dict[int, bytes] = {}
        self.evictions = self.copies = 0

    @property
    def available(self) -> int:
        """Blocks that a sequence could still get: free, or published and held by nobody."""
        return len(self.free) + sum(not self.owners[block] for block in self.published)

    def grow(self, rows: Sequence[list[int]], held: int, end: int) -> bool:
        """Give each row blocks of its own for its tokens held..end-1, in place -> whether any row changed.

        Raises UserError, with nothing changed, where neither free nor evictable blocks suffice.
        """
        first, last = held // self.size, blocks_for(end, self.size)
        writes = Counter(block for row in rows for block in row[first:last])
        copies = sum(n if self.owners[block] > n else n - 1 for block, n in writes.items())
        need = copies + sum(max(0, last - len(row)) for row in rows)
        if need > self.available:
            raise UserError(
                f"out of blocks: {need} more are needed, {self.available} of {self.blocks} are free or "
                "evictable; end or rewind a sequence, or build the pool with more blocks"
            )
        for row in rows:
            for i in range(first, min(last, len(row))):
                row[i] = self._private(row[i])
            while len(row) < last:
                row.append(self._take())
        return need > 0

    def fork(self, row: Sequence[int], tokens: int) -> list[int]:
        """A second sequence over the first `tokens` of this one; nothing is copied until one writes."""
        shared = list(row[: blocks_for(tokens, self.size)])
        for block in shared:
            self.owners[block] += 1
        return shared

    def release(self, row: list[int], tokens: int = 0) -> None:
        """Give up the blocks past the first `tokens`, in place. Published ones stay until evicted."""
        keep = blocks_for(tokens, self.size)
        for block in row[keep:]:
            self.owners[block] -= 1
            if not self.owners[block] and block not in self.published:
                self.free.append(block)
        del row[keep:]

    def publish(self, row: Sequence[int], tokens: Tensor) -> None:
        """Offer the full blocks of this row, which holds `tokens` int64 [n], to later sequences."""
        keys = self._keys(tokens)
        for key, block in zip(keys, row, strict=False):
            if key not in self.prefixes and block not in self.published:
                self.prefixes[key] = block
                self.published[block] = key
        self._touch(keys)

    def adopt(self, tokens: Tensor) -> list[int]:
        """A sequence over the longest published prefix of `tokens` int64 [n]; empty where there is none."""
        row = []
        keys = self._keys(tokens)
        for key in keys:
            if key not in self.prefixes:
                break
            row.append(self.prefixes[key])
            self.owners[row[-1]] += 1
        self._touch(keys[: len(row)])
        return row

    def _keys(self, tokens: Tensor) -> list[bytes]:
        """One per full block: all tokens up to its end, since keys and values depend on all of them."""
        text = tokens.cpu().numpy()
        return [text[: end + self.size].tobytes() for end in range(0, len(text) - self.size + 1, self.size)]

    def _touch(self, keys: Sequence[bytes]) -> None:
        """Mark as used, the start of the text last: without it the rest of a prefix cannot be found."""
        for key in reversed(keys):
            self.prefixes.move_to_end(key)

    def _take(self) -> int:
        """A block that nobody holds; the caller has counted that there is one."""
        if self.free:
            block = self.free.pop()
        else:
            block = next(block for block in self.prefixes.values() if not self.owners[block])
            self._unpublish(block)
            self.evictions += 1
        self.owners[block] = 1
        return block

    def _private(self, block: int) -> int:
        """This block, or a copy of it, that only the caller holds and nobody looks up."""
        if self.owners[block] == 1:
            if block in self.published:
                self._unpublish(block)
            return block
        copy = self._take()
        for buffer in (*self.k, *self.v):
            buffer[copy] = buffer[block]
        self.owners[block] -= 1
        self.copies += 1
        return copy

    def _unpublish(self, block: int) -> None:
        del self.prefixes[self.published.pop(block)]
