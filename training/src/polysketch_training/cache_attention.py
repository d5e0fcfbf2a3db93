"""Causal attention of the KV kinds: softmax, and weights that are functions of dot products. Quadratic time, linear memory."""

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from polysketch_training.block_attention import sum_type
from polysketch_training.state import CacheState

_QUERY_ROWS = 256  # queries that meet all keys at once


def cache_attention(q, k, v, *, weigh=None, state: CacheState | None = None, want_state: bool = False):
    """Returns out [B, H, n, d] of q, k, v [B, H, n, d], and the cache with these keys and values if it is wanted.

    Weights are exp(q . k / sqrt(d)) without a stabilizer (weigh None), or weigh(q . k) with stabilizer 1; weigh takes the
    dot products [B, H, queries, keys].
    """
    if state is not None:
        k, v = torch.cat([state.k.to(k.dtype), k], dim=2), torch.cat([state.v.to(v.dtype), v], dim=2)
    if weigh is None:
        out = _softmax(q, k, v)
    else:
        out = torch.cat(list(_in_rows(q, k, v, lambda *x: _weighted(*x, weigh))), dim=2)
    return out, CacheState(k, v) if want_state else None


def _softmax(q, k, v):
    if q.shape[2] == k.shape[2]:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return torch.cat(list(_in_rows(q, k, v, _masked_softmax)), dim=2)


def _in_rows(q, k, v, function):
    """Yields function(queries, their keys, their values) for groups of queries. The last query meets all of its keys."""
    earlier = k.shape[2] - q.shape[2]
    for begin in range(0, q.shape[2], _QUERY_ROWS):
        part = q[:, :, begin : begin + _QUERY_ROWS]
        last = earlier + begin + part.shape[2]
        arguments = (part, k[:, :, :last], v[:, :, :last])
        if torch.is_grad_enabled() and q.shape[2] > _QUERY_ROWS:
            yield checkpoint(function, *arguments, use_reentrant=False)
        else:
            yield function(*arguments)


def _mask(q, k):
    """Returns which keys each query meets. Made where it is used: kept masks would grow with the square of the tokens."""
    rows, keys = q.shape[2], k.shape[2]
    return torch.ones(rows, keys, dtype=torch.bool, device=q.device).tril(keys - rows)


def _masked_softmax(q, k, v):
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=_mask(q, k))


def _weighted(q, k, v, weigh):
    weights = weigh((q @ k.mT).to(sum_type(q.dtype))).masked_fill(~_mask(q, k), 0)
    out = (weights.to(v.dtype) @ v).to(weights.dtype)
    return (out / (1 + weights.sum(-1, keepdim=True))).to(v.dtype)
