"""HyperAttention (Han et al., 2023) in plain PyTorch, to compare with; the server does not have it. Memory grows linearly with
the tokens, time as n log n beyond EXACT_TOKENS.

It approximates causal softmax attention. A sequence is two causal halves and a rectangle, in which the queries of the second half
meet the keys of the first; sequences up to EXACT_TOKENS are exact. In a rectangle (hyper_rectangle.py) a query meets a block of
keys of its direction and a sample of the other keys. The parts of a query are merged by their log-sum-exps. All rectangles of one
size are computed at once.

The gradient of a part needs the final output and log-sum-exp of its queries only, not the outputs of parts: forward keeps one
output a token, and backward computes the weights again.
"""

import torch
from torch.nn import functional

from polysketch_training import hyper_rectangle
from polysketch_training.block_attention import sum_type
from polysketch_training.hyper_rectangle import Part, Rows

EXACT_TOKENS = 4096  # a multiple of hyper_rectangle.BLOCK
_QUERY_ROWS = 256  # queries of an exact part
# Weights in memory at once: fewer stay in a CPU's cache, more fill a GPU.
_CPU_WEIGHTS, _DEVICE_WEIGHTS = 1 << 22, 1 << 28


def hyper_attention(q, k, v, directions):
    """Returns out [B, H, n, d] of q, k, v [B, H, n, d]. directions [d, bits] of the hash are fixed; columns are sampled anew by
    each call, from torch's default generator."""
    tokens = q.shape[2]
    halvings, leaf = _division(tokens)
    if halvings == 0:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    # Rows of zeros at the end: no query before them reads them.
    padded = (functional.pad(x.to(v.dtype), (0, 0, 0, (leaf << halvings) - tokens)).flatten(0, 1).contiguous() for x in (q, k, v))
    seed = int(torch.randint(1 << 62, ()))
    out = _HyperAttention.apply(*padded, directions, halvings, seed)
    return out[:, :tokens].unflatten(0, q.shape[:2])


def _division(tokens: int) -> tuple[int, int]:
    """Returns how often a sequence is halved, and the tokens of an exact part, whole blocks of the rectangles."""
    halvings = 0
    while tokens > EXACT_TOKENS << halvings:
        halvings += 1
    blocks = -(-tokens // (hyper_rectangle.BLOCK << halvings))
    return halvings, blocks * hyper_rectangle.BLOCK


class _HyperAttention(torch.autograd.Function):
    """q, k, v and out [N, n, d], n = leaf << halvings."""

    @staticmethod
    def forward(ctx, q, k, v, directions, halvings, seed):
        total = sum_type(v.dtype)
        out = torch.zeros_like(v, dtype=total)
        log_sums = torch.full((*v.shape[:2], 1), -torch.inf, dtype=total, device=v.device)
        with torch.autocast(v.device.type, enabled=False):
            for part in _parts(q, k, directions, halvings, seed):
                _merge(part.queries.window(out), part.queries.window(log_sums), *_attend(part, q, k, v))
        out = out.to(v.dtype)
        ctx.save_for_backward(q, k, v, directions, out, log_sums)
        ctx.halvings, ctx.seed = halvings, seed
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        q, k, v, directions, out, log_sums = ctx.saved_tensors
        gradients = [torch.zeros_like(x, dtype=log_sums.dtype) for x in (q, k, v)]
        with torch.autocast(v.device.type, enabled=False):
            g = g.to(v.dtype).contiguous()
            shared = (g.to(log_sums.dtype) * out).sum(-1, keepdim=True)
            for part in _parts(q, k, directions, ctx.halvings, ctx.seed):
                _add_gradients(part, gradients, q, k, v, g, log_sums, shared)
        return *(x.to(v.dtype) for x in gradients), None, None, None


def _parts(q, k, directions, halvings: int, seed: int):
    """Yields the parts of all sequences; each query is in an exact one first. The same seed gives the same parts."""
    count, tokens = q.shape[:2]
    leaf = tokens >> halvings
    yield from _exact_parts(count << halvings, leaf, q)
    generator = torch.Generator(q.device).manual_seed(seed)
    for level in range(halvings):
        side = leaf << level
        for rows in _groups(count << (halvings - level - 1), hyper_rectangle.weights_of(side), q.device):
            yield from hyper_rectangle.parts(q, k, directions, side, rows, generator)


def _exact_parts(count: int, leaf: int, like):
    for begin in range(0, leaf, _QUERY_ROWS):
        end = min(begin + _QUERY_ROWS, leaf)
        later = torch.full((end - begin, end), -torch.inf, dtype=sum_type(like.dtype), device=like.device).triu(begin + 1)
        for rows in _groups(count, later.numel(), like.device):
            yield Part(Rows(leaf, rows, begin, end), Rows(leaf, rows, 0, end), later)


def _groups(count: int, weights: int, device):
    """Yields slices of `count` sequences, `weights` of each, that are in memory at once."""
    most = _CPU_WEIGHTS if device.type == "cpu" else _DEVICE_WEIGHTS
    step = max(1, most // weights)
    for begin in range(0, count, step):
        yield slice(begin, min(begin + step, count))


def _scores(part: Part, q, k):
    scores = torch.bmm(q, k.mT).to(sum_type(q.dtype)) * q.shape[-1] ** -0.5
    return scores if part.bias is None else scores.add_(part.bias)


def _attend(part: Part, q, k, v):
    """Returns out and log-sum-exp of the queries of a part, by themselves."""
    queries, keys, values = part.queries.read(q), part.keys.read(k), part.keys.read(v)
    scores = _scores(part, queries, keys)
    log_sums = scores.logsumexp(-1, keepdim=True)
    weights = scores.sub_(log_sums.masked_fill(log_sums.isinf(), 0)).exp_()  # a query without a key has no weights
    out = torch.bmm(weights.to(v.dtype), values).to(log_sums.dtype)
    return part.queries.collect(out), part.queries.collect(log_sums)


def _merge(out, log_sums, part_out, part_log_sums) -> None:
    """Adds a part to the output and the log-sum-exp of the parts before it."""
    merged = torch.logaddexp(log_sums, part_log_sums)
    out.mul_((log_sums - merged).exp_()).add_(part_out * (part_log_sums - merged).exp_())
    log_sums.copy_(merged)


def _add_gradients(part: Part, gradients, q, k, v, g, log_sums, shared) -> None:
    """Adds what a part contributes to the gradients of q, k and v."""
    queries, keys, values, g = part.queries.read(q), part.keys.read(k), part.keys.read(v), part.queries.read(g)
    weights = _scores(part, queries, keys).sub_(part.queries.read(log_sums)).exp_()
    dots = torch.bmm(g, values.mT).to(weights.dtype)
    of_scores = (dots.sub_(part.queries.read(shared)).mul_(weights) * q.shape[-1] ** -0.5).to(v.dtype)
    part.queries.window(gradients[0]).add_(part.queries.collect(torch.bmm(of_scores, keys)))
    part.keys.add(gradients[1], torch.bmm(of_scores.mT, queries))
    part.keys.add(gradients[2], torch.bmm(weights.to(v.dtype).mT, g))
