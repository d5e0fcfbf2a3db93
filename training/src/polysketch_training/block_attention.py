"""Block-parallel causal attention of the recurrent kinds in plain PyTorch. Memory grows linearly with the tokens.

    out_t = sum_s w[t,s] v_s / (stabilizer + sum_s w[t,s]) over s <= t

w[t,s] = (near_q_t . near_k_s)^near_power in the block of t (mixed kinds; else as in earlier blocks), and in earlier blocks
(far_q_t . far_k_s)^2, or far_q_t . far_k_s if far rows are features already (`squared` false). With a decay gate every
weight is multiplied by e^(G_t - G_s), G the running sum of log_decay; the stabilizer does not decay.

The walk goes over segments of several blocks. Earlier blocks of the same segment are read by dot products, as that is
cheaper for few tokens than r^2 features; earlier segments are read from the sums S and z. Sums are float32 at least.
"""

import dataclasses

import torch
from torch.utils.checkpoint import checkpoint

from polysketch_training.state import FoldedState

# Tokens of a segment. With r = 32 and d = 64, dot products with the segment's earlier tokens (192 FLOP each) cost more than
# a gradient through a fold (164 kFLOP a token) from about 850 earlier tokens on; their average is less than half a segment.
SEGMENT_TOKENS = 512
# Longer sequences compute a segment again in the backward pass. Else its weights and features are kept in every layer, about
# 10 kB for each token and head: 12 GB for 8,192 tokens of the paper's 110M model.
RECOMPUTE_TOKENS = 16 * SEGMENT_TOKENS
_TILE = 8


@dataclasses.dataclass(frozen=True)
class Weights:
    """How weights follow from dot products."""

    block: int
    stabilizer: float = 1.0
    squared: bool = True
    near_power: int = 4


@dataclasses.dataclass
class Rows:
    """Queries, keys and values of consecutive tokens, all [B, H, n, .]; near rows of mixed kinds, log_decay [B, H, n]."""

    far_q: torch.Tensor
    far_k: torch.Tensor
    v: torch.Tensor
    near_q: torch.Tensor | None = None
    near_k: torch.Tensor | None = None
    log_decay: torch.Tensor | None = None


def num_features(width: int, squared: bool) -> int:
    """Returns F, the rows of S for far rows of `width` columns."""
    if not squared:
        return width
    return sum(min(_TILE, width - begin) * (width - begin) for begin in range(0, width, _TILE))


def sum_type(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


def empty_state(rows: Rows, weights: Weights, buffered: int) -> FoldedState:
    """Returns the state of a sequence that starts at a position which is `buffered` modulo the block."""
    batch, heads, _, d = rows.v.shape
    features = num_features(rows.far_k.shape[-1], weights.squared)

    def zeros(like, *shape, dtype=None):
        return None if like is None else like.new_zeros(batch, heads, *shape, dtype=dtype or like.dtype)

    total = sum_type(rows.v.dtype)
    return FoldedState(
        sums=zeros(rows.v, features, d, dtype=total),
        normalizer=zeros(rows.v, features, dtype=total),
        near_k=zeros(rows.near_k, buffered, 0 if rows.near_k is None else rows.near_k.shape[-1]),
        far_k=zeros(rows.far_k, buffered, rows.far_k.shape[-1]),
        v=zeros(rows.v, buffered, d),
        log_decay=zeros(rows.log_decay, buffered),
    )


def block_attention(
    rows: Rows, weights: Weights, state: FoldedState | None = None, *, buffered: int = 0, want_state: bool = False
) -> tuple[torch.Tensor, FoldedState | None]:
    """Returns out [B, H, n, d] and, if wanted, the state after the last token.

    `state` is the state before the first token (None: a sequence that starts at a position which is `buffered` modulo the
    block). Gradients flow into a state that has a history; pass state.detach() to cut them.
    """
    fresh = state is None
    if fresh:
        state = empty_state(rows, weights, buffered)
    joined = _join(state, rows)
    before, tokens = state.v.shape[2], joined.v.shape[2]
    full = tokens // weights.block * weights.block  # tokens of full blocks: these are folded
    padded = _pad(joined, -tokens % weights.block)
    far = None if fresh else (state.sums, state.normalizer)
    step = max(1, SEGMENT_TOKENS // weights.block) * weights.block
    recompute = torch.is_grad_enabled() and tokens > RECOMPUTE_TOKENS
    outputs = []
    for begin in range(0, padded.v.shape[2], step):
        segment = _slice(padded, begin, begin + step)
        end = min(begin + step, full) - begin
        # The last fold is needed for the final state alone.
        fold = max(end, 0) if want_state or begin + step < tokens else 0
        arguments = (segment, weights, far, fold)
        out, far = checkpoint(_segment, *arguments, use_reentrant=False) if recompute else _segment(*arguments)
        outputs.append(out)
    out = torch.cat(outputs, dim=2)[:, :, before:tokens]
    if not want_state:
        return out, None
    sums, normalizer = (state.sums, state.normalizer) if far is None else far
    rest = _slice(joined, full, tokens)
    return out, FoldedState(sums, normalizer, rest.near_k, rest.far_k, rest.v, rest.log_decay)


def _map(rows: Rows, function) -> Rows:
    fields = {field.name: getattr(rows, field.name) for field in dataclasses.fields(rows)}
    return Rows(**{name: None if x is None else function(name, x) for name, x in fields.items()})


def _join(state: FoldedState, rows: Rows) -> Rows:
    """Returns the rows from the start of the block on: the buffer's keys and values first, with queries of zeros."""
    if state.v.shape[2] == 0:
        return rows

    def join(name, x):
        if name in ("near_q", "far_q"):
            return torch.cat([x.new_zeros(*x.shape[:2], state.v.shape[2], x.shape[3]), x], dim=2)
        return torch.cat([getattr(state, name).to(x.dtype), x], dim=2)

    return _map(rows, join)


def _pad(rows: Rows, count: int) -> Rows:
    """Appends rows of zeros: their weights are zero, and no query before them reads them."""
    if count == 0:
        return rows
    return _map(rows, lambda _, x: torch.cat([x, x.new_zeros(*x.shape[:2], count, *x.shape[3:])], dim=2))


def _slice(rows: Rows, begin: int, end: int) -> Rows:
    return _map(rows, lambda _, x: x[:, :, begin:end])


def _segment(rows: Rows, weights: Weights, far, fold: int):
    """Returns out of one segment of whole blocks, and (S, z) with its first `fold` tokens added.

    far: (S, z) of all earlier segments, or None if there is none.
    """
    batch, heads, tokens, d = rows.v.shape
    flat = _map(rows, lambda _, x: x.reshape(batch * heads, *x.shape[2:]))
    passed = None if flat.log_decay is None else flat.log_decay.to(sum_type(flat.v.dtype)).cumsum(-1)  # G
    numerator, denominator = _near_part(flat, weights, passed)
    _add_parts(numerator, denominator, _segment_far_part(flat, weights, passed))
    if far is not None:
        flat_far = tuple(x.flatten(0, 1) for x in far)
        from_state = _state_far_part(flat, weights, passed, *flat_far)
        numerator = [x + y for x, y in zip(numerator, from_state[0].split(weights.block, 1))]
        denominator = [x + y for x, y in zip(denominator, from_state[1].split(weights.block, 1))]
    out = torch.cat([x / (weights.stabilizer + y)[..., None] for x, y in zip(numerator, denominator)], dim=1)
    out = out.to(rows.v.dtype).reshape(batch, heads, tokens, d)
    if fold == 0:
        return out, far
    sums, normalizer = _fold(flat, weights, passed, fold)
    sums, normalizer = (x.reshape(batch, heads, *x.shape[1:]) for x in (sums, normalizer))
    if far is not None:
        sums, normalizer = (new + _faded(old, passed, fold) for new, old in zip((sums, normalizer), far))
    return out, (sums, normalizer)


def _faded(x, passed, fold: int):
    """Multiplies earlier sums [B, H, ...] by e^G of the last folded token: what the gate keeps of them."""
    if passed is None:
        return x
    return x * passed[:, fold - 1].exp().reshape(*x.shape[:2], *[1] * (x.dim() - 2))


def _add_parts(numerator: list, denominator: list, parts) -> None:
    for i, (more, weight) in parts:
        numerator[i] = numerator[i] + more
        denominator[i] = denominator[i] + weight


def _products(q, k, total):
    return torch.bmm(q, k.mT).to(total)


def _decay(weights, passed_q, passed_k):
    """Multiplies weights [., t, s] by e^(G_t - G_s). Masked pairs (s > t) would overflow: their exponent is cut at 0."""
    if passed_q is None:
        return weights
    return weights * (passed_q[..., :, None] - passed_k[..., None, :]).clamp(max=0).exp()


def integer_power(x: torch.Tensor, power: int) -> torch.Tensor:
    """x^power by repeated squares; torch.pow would take logarithms on some devices."""
    result = None
    while power:
        if power & 1:
            result = x if result is None else result * x
        power >>= 1
        if power:
            x = x.square()
    return result


def _near_part(rows: Rows, weights: Weights, passed):
    """Returns numerators [BH, b, d] and denominators [BH, b] of every block, in lists, from the tokens of the block itself."""
    block, total = weights.block, sum_type(rows.v.dtype)
    mixed = rows.near_q is not None
    q, k = (rows.near_q, rows.near_k) if mixed else (rows.far_q, rows.far_k)

    def in_blocks(x):
        return x.reshape(-1, block, *x.shape[2:])

    dots = _products(in_blocks(q), in_blocks(k), total)
    if mixed:
        dots = integer_power(dots, weights.near_power)
    elif weights.squared:
        dots = dots.square()
    if passed is not None:
        dots = _decay(dots, in_blocks(passed), in_blocks(passed))
    dots = dots.tril()
    numerator = torch.bmm(dots.to(rows.v.dtype), in_blocks(rows.v)).to(total)
    count = rows.v.shape[0]
    return (
        list(numerator.reshape(count, -1, block, rows.v.shape[2]).unbind(1)),
        list(dots.sum(-1).reshape(count, -1, block).unbind(1)),
    )


def _segment_far_part(rows: Rows, weights: Weights, passed):
    """Yields (block, (numerator, denominator)) from earlier blocks of the segment, by dot products."""
    block, total = weights.block, sum_type(rows.v.dtype)
    for i in range(1, rows.v.shape[1] // block):
        own, earlier = slice(i * block, (i + 1) * block), slice(0, i * block)
        dots = _products(rows.far_q[:, own], rows.far_k[:, earlier], total)
        if weights.squared:
            dots = dots.square()
        if passed is not None:
            dots = _decay(dots, passed[:, own], passed[:, earlier])
        yield i, (torch.bmm(dots.to(rows.v.dtype), rows.v[:, earlier]).to(total), dots.sum(-1))


def _state_far_part(rows: Rows, weights: Weights, passed, sums, normalizer):
    """Returns numerator [BH, n, d] and denominator [BH, n] from the sums over earlier segments."""
    phi = query_features(rows.far_q, weights.squared)
    numerator = torch.bmm(phi, sums.to(phi.dtype)).to(sums.dtype)
    denominator = torch.bmm(phi.to(sums.dtype), normalizer[..., None])[..., 0]
    if passed is None:
        return numerator, denominator
    kept = passed.exp()
    return numerator * kept[..., None], denominator * kept


def _fold(rows: Rows, weights: Weights, passed, fold: int):
    """Returns S [BH, F, d] and z [BH, F] of the first `fold` tokens. The fold reads no fewer bits than the sums have."""
    total = sum_type(rows.v.dtype)
    phi = key_features(rows.far_k[:, :fold], weights.squared).to(total)
    if passed is not None:
        phi = phi * (passed[:, fold - 1 : fold] - passed[:, :fold]).exp()[..., None]
    return torch.bmm(phi.mT, rows.v[:, :fold].to(total)), phi.sum(1)


def query_features(x: torch.Tensor, squared: bool) -> torch.Tensor:
    """phi of queries: products of pairs in tiles of 8 columns; those right of a tile's diagonal stand for two pairs each."""
    if not squared:
        return x
    width = x.shape[-1]
    tiles = []
    for begin in range(0, width, _TILE):
        end = min(begin + _TILE, width)
        right = torch.cat([x[..., begin:end], 2 * x[..., end:]], dim=-1)
        tiles.append((x[..., begin:end, None] * right[..., None, :]).flatten(-2))
    return torch.cat(tiles, dim=-1)


def key_features(x: torch.Tensor, squared: bool) -> torch.Tensor:
    """phi of keys: the same products, each once."""
    if not squared:
        return x
    return torch.cat(
        [
            (x[..., begin : begin + _TILE, None] * x[..., None, begin:]).flatten(-2)
            for begin in range(0, x.shape[-1], _TILE)
        ],
        dim=-1,
    )
