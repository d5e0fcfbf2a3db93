"""Attention of layers with a window and sinks, and a far part beside them (docs/attention.md), block by block."""

import dataclasses
import functools

import torch
import torch.nn.functional as F

from polysketch_training.block_attention import sum_type
from polysketch_training.linearize.products import product_type

KINDS = ("blocks", "sliding")
_LEAST_SHIFT = -87.0  # of far parts: e^87 is a float32
BLOCKS_AT_ONCE = 16  # whose features are in memory


@dataclasses.dataclass(frozen=True)
class Window:
    size: int  # w
    kind: str  # of KINDS: the own block of w tokens and the one before, or the last w tokens
    sinks: int  # first tokens of the sequence that every token attends to

    @property
    def most(self) -> int:
        """Tokens of the window at its longest."""
        return self.size if self.kind == "sliding" else 2 * self.size


def visible(t: torch.Tensor, s: torch.Tensor, window: Window) -> torch.Tensor:
    """Whether token t attends to token s."""
    first = t - window.size + 1 if window.kind == "sliding" else (t // window.size - 1) * window.size
    return (s <= t) & ((s >= first) | (s < window.sinks))


@dataclasses.dataclass
class Far:
    """Rows of a far part: (q.k)^2, or q.k if they are features, is the weight of a token that has left the window. With log_decay it is
    multiplied by what the decay gate keeps at the tokens after it that have left the window too."""

    q: torch.Tensor  # [B, H, n, r]
    k: torch.Tensor  # [B, Hkv, n, r]
    squared: bool = True
    log_decay: torch.Tensor | None = None  # [B, Hkv, n]; at most 0

    def features(self, x: torch.Tensor) -> torch.Tensor:
        """Of rows: [..., r] -> [..., features]"""
        return _Squares.apply(x) if self.squared else x


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, window: Window | None, far: Far | None = None
) -> torch.Tensor:
    """q [B, H, n, d], k and v [B, Hkv, n, d], q and k rotated. Returns [B, H, n, d]. Without a window: all earlier tokens."""
    n = q.shape[2]
    # A window of all tokens costs more than what it equals.
    if window is None or n <= window.size:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=q.shape[1] != k.shape[1])
    cut = _Blocks(n, q.shape[1] // k.shape[1], k.shape[1], min(window.sinks, n), window.size)
    mask = _mask(cut.count, cut.group, cut.sinks, window, q.device)
    if far is None:
        out = F.scaled_dot_product_attention(
            cut.rows(q).flatten(0, 1),
            cut.columns(k).flatten(0, 1),
            cut.columns(v).flatten(0, 1),
            attn_mask=mask.repeat(q.shape[0], 1, 1, 1),
            scale=scale,
        )
        return cut.tokens(out.unflatten(0, (-1, cut.count)))
    return cut.tokens(_with_far(cut, q * scale, k, v, mask, far))


@dataclasses.dataclass
class _Blocks:
    """n tokens in blocks of w: a block of queries meets the sinks, the keys of the block before, and its own. Query heads of a kv head
    are rows of one product."""

    n: int
    group: int
    kv_heads: int
    sinks: int
    w: int

    @property
    def count(self) -> int:
        return -(-self.n // self.w)

    def rows(self, x: torch.Tensor) -> torch.Tensor:
        """[B, H, n, c] -> [B, blocks, Hkv, group * w, c]"""
        x = self._padded(x).reshape(x.shape[0], self.kv_heads, self.group, self.count, self.w, x.shape[3])
        return x.permute(0, 3, 1, 2, 4, 5).flatten(3, 4)

    def own(self, x: torch.Tensor) -> torch.Tensor:
        """[B, Hkv, n, c] -> [B, blocks, Hkv, w, c]"""
        return self._padded(x).unflatten(2, (self.count, self.w)).transpose(1, 2)

    def columns(self, x: torch.Tensor) -> torch.Tensor:
        """[B, Hkv, n, c] -> [B, blocks, Hkv, sinks + 2 w, c]"""
        own = self.own(x)
        before = torch.cat([torch.zeros_like(own[:, :1]), own[:, :-1]], 1)
        first = x[:, None, :, : self.sinks].expand(-1, self.count, -1, -1, -1)
        return torch.cat([first, before, own], 3)

    def tokens(self, x: torch.Tensor) -> torch.Tensor:
        """The inverse of rows."""
        x = x.unflatten(3, (self.group, self.w)).permute(0, 2, 3, 1, 4, 5)
        return x.reshape(x.shape[0], self.kv_heads * self.group, self.count * self.w, -1)[:, :, : self.n]

    def _padded(self, x: torch.Tensor) -> torch.Tensor:
        return F.pad(x, (0, 0, 0, self.count * self.w - self.n))


class _Squares(torch.autograd.Function):
    """x_i x_j of all i and j: [..., r] -> [..., r * r]. The gradient takes that of x_i x_j and that of x_j x_i to be equal, as they are where
    the products meet sums of such products."""

    @staticmethod
    def forward(ctx, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return (x[..., :, None] * x[..., None, :]).flatten(-2)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return 2 * (gradient.unflatten(-1, (x.shape[-1], x.shape[-1])) @ x[..., None])[..., 0]


def _with_far(cut: _Blocks, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor, far: Far) -> torch.Tensor:
    """One denominator for the exponentials of the window and the weights of what has left it. [B, blocks, Hkv, group * w, d]"""
    with_one = F.pad(v, (0, 1), value=1.0)
    exact, product = sum_type(q.dtype), product_type(q)
    with torch.autocast(q.device.type, enabled=False):
        scores = (cut.rows(q.to(exact)) @ cut.columns(k.to(exact)).mT).masked_fill_(~mask, -torch.inf)
    not_sinks = (torch.arange(k.shape[2], device=k.device) >= cut.sinks)[:, None]
    far_q, far_k, values = cut.rows(far.q.to(product)), cut.own((far.k * not_sinks).to(product)), cut.own(with_one)
    state = v.new_zeros(v.shape[0], cut.kv_heads, far.k.shape[-1] ** (2 if far.squared else 1), with_one.shape[-1], dtype=exact)
    kept = None
    if far.log_decay is not None:
        sums = cut.own(far.log_decay[..., None].to(exact)).cumsum(-2)
        last = sums[..., -1:, :]
        values, kept = values * (last - sums).exp().to(values.dtype), last.exp()
    parts = [far_q.new_zeros(*far_q[:, :2].shape[:-1], with_one.shape[-1])]
    for begin in range(2, cut.count, BLOCKS_AT_ONCE):
        end = min(begin + BLOCKS_AT_ONCE, cut.count)
        left = slice(begin - 2, end - 2)  # blocks that leave the window, each as one of [begin, end) begins
        of_blocks = (far.features(far_k[:, left]).mT @ values[:, left]).to(exact)
        states = _states(state, of_blocks, None if kept is None else kept[:, left])
        state = states[:, -1]
        parts.append(far.features(far_q[:, begin:end]) @ states)
    far_sums = torch.cat(parts, 1).to(exact)
    shift = torch.maximum(scores.detach().amax(-1, keepdim=True), far_sums.detach()[..., -1:].log())
    near_sums = scores.sub_(shift).exp_() @ cut.columns(with_one)
    sums = near_sums + far_sums * (-shift.clamp(min=_LEAST_SHIFT)).exp()
    return sums[..., :-1] / sums[..., -1:]


def _states(state: torch.Tensor, of_blocks: torch.Tensor, kept: torch.Tensor | None) -> torch.Tensor:
    """The state [B, Hkv, features, d + 1] after each of the blocks, whose sums are of_blocks [B, blocks, Hkv, features, d + 1]. kept
    [B, blocks, Hkv, 1, 1]: what remains of the state at a block; None: all."""
    if kept is None:
        return state[:, None] + of_blocks.cumsum(1)
    states = []
    for i in range(of_blocks.shape[1]):
        state = state * kept[:, i] + of_blocks[:, i]
        states.append(state)
    return torch.stack(states, 1)


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
