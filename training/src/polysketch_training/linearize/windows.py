"""Attention of layers with a window and sinks (docs/attention.md), block by block."""

import dataclasses
import functools

import torch
import torch.nn.functional as F

KINDS = ("blocks", "sliding")


@dataclasses.dataclass(frozen=True)
class Window:
    size: int  # w
    kind: str  # of KINDS: the own block of w tokens and the one before, or the last w tokens
    sinks: int  # first tokens of the sequence that every token attends to


def visible(t: torch.Tensor, s: torch.Tensor, window: Window) -> torch.Tensor:
    """Whether token t attends to token s."""
    first = t - window.size + 1 if window.kind == "sliding" else (t // window.size - 1) * window.size
    return (s <= t) & ((s >= first) | (s < window.sinks))


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, window: Window | None) -> torch.Tensor:
    """q [B, H, n, d], k and v [B, Hkv, n, d], q and k rotated. Returns [B, H, n, d]. Without a window: all earlier tokens."""
    n = q.shape[2]
    # A window of all tokens costs more than what it equals.
    if window is None or n <= window.size:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=q.shape[1] != k.shape[1])
    batch, heads, _, d = q.shape
    kv_heads, w = k.shape[1], window.size
    group, blocks, sinks = heads // kv_heads, -(-n // w), min(window.sinks, n)
    q, k, v = (F.pad(x, (0, 0, 0, blocks * w - n)) for x in (q, k, v))
    # A block of queries meets the sinks, the keys of the block before, and its own. Query heads of a kv head are rows of one product.
    rows = q.reshape(batch, kv_heads, group, blocks, w, d).permute(0, 3, 1, 2, 4, 5).reshape(batch * blocks, kv_heads, group * w, d)

    def columns(x):
        own = x.reshape(batch, kv_heads, blocks, w, d).transpose(1, 2)
        before = torch.cat([torch.zeros_like(own[:, :1]), own[:, :-1]], 1)
        first = x[:, None, :, :sinks].expand(-1, blocks, -1, -1, -1)
        return torch.cat([first, before, own], 3).flatten(0, 1)

    mask = _mask(blocks, group, sinks, window, q.device).repeat(batch, 1, 1, 1)
    out = F.scaled_dot_product_attention(rows, columns(k), columns(v), attn_mask=mask, scale=scale)
    out = out.reshape(batch, blocks, kv_heads, group, w, d).permute(0, 2, 3, 1, 4, 5).reshape(batch, heads, blocks * w, d)
    return out[:, :, :n]


@functools.lru_cache(maxsize=8)
def _mask(blocks: int, group: int, sinks: int, window: Window, device: torch.device) -> torch.Tensor:
    """[blocks, 1, group * w, sinks + 2 w]: a sink within the window counts in its place there, once."""
    w = window.size
    start = torch.arange(blocks, device=device)[:, None, None] * w
    t = start + torch.arange(w, device=device)[:, None]
    s = start + torch.arange(-w, w, device=device)
    near = visible(t, s, dataclasses.replace(window, sinks=0)) & (s >= 0)
    sink = torch.arange(sinks, device=device).expand(blocks, 1, sinks)
    far = visible(t, sink, window) & ~visible(t, sink, dataclasses.replace(window, sinks=0))
    return torch.cat([far, near], -1).repeat(1, group, 1)[:, None]
