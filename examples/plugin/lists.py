"""A decoder of one's own as a rung: the keys and values of each layer in a Python list."""

import copy

import torch
from torch.nn.functional import scaled_dot_product_attention as attention


class Lists:
    def __init__(self, model, batch, capacity):
        self.model = (
            model  # weights, sizes in model.config; rows and tokens are `batch` and `capacity` at most
        )
        self.past = []

    def prefill(self, tokens):  # [B,P] -> [B,V]
        self.past = [[] for _ in self.model.blocks]
        return logits(self.model, tokens, self.past)[:, -1]

    def step(self, token):  # [B,1] -> [B,V]
        return logits(self.model, token, self.past)[:, -1]

    def reference(self, tokens):  # [B,T] -> [B,T,V]
        return logits(copy.deepcopy(self.model).double(), tokens, [[] for _ in self.model.blocks])


def logits(model, tokens, past):
    held = sum(keys.size(2) for keys, _ in past[0])
    positions = torch.arange(held, held + tokens.size(1), device=tokens.device)
    visible = positions[:, None] >= torch.arange(held + tokens.size(1), device=tokens.device)

    def attend(layer, q, k, v):
        past[layer].append((k, v))
        k, v = (torch.cat(parts, dim=2) for parts in zip(*past[layer], strict=True))
        return attention(q, k, v, attn_mask=visible, enable_gqa=True)

    return model(tokens, positions, attend, lambda lm_head, hidden: lm_head(hidden))
