"""Which keys a query meets in a rectangle of HyperAttention (hyper_attention.py): those of its block, and sampled ones.

- Keys are sorted by their bucket and cut into blocks of BLOCK. A bucket is a hash of a direction; consecutive buckets differ in
  one sign. The block of a query is the one into which its own bucket falls among the sorted keys. The queries of a block are
  cut into tiles, the last one padded, so that all tiles have one shape.
- SAMPLES keys are drawn uniformly, without repetition, for all queries of the rectangle, each with the weight of
  keys / SAMPLES. A query leaves out those of its block.

The published algorithm also sorts the queries, and queries and keys of equal rank share a block. There, later queries move
earlier ones to other blocks. Here a query's block depends on itself and on earlier keys alone.
"""

import dataclasses
import math

import torch

from polysketch_training.block_attention import sum_type

BLOCK = 256
SAMPLES = 256
HASH_BITS = 7


@dataclasses.dataclass
class Rows:
    """Rows of the tensors [N, n, ...]: of the sequences of `length` tokens that lie in them one after the other, those of the
    slice `sequences`, and of these the tokens from `begin` to `end`, which are the window [M, end - begin, ...].

    With `index` [M, groups * count], the rows of the window that it names, in groups; `slots` are the inverse for queries.
    """

    length: int
    sequences: slice
    begin: int
    end: int
    index: torch.Tensor | None = None
    groups: int = 1
    slots: torch.Tensor | None = None

    def window(self, x):
        """Returns a view."""
        return x.view(-1, self.length, x.shape[-1])[self.sequences, self.begin : self.end]

    def read(self, x):
        """Returns the rows [M * groups, count, ...]."""
        window = self.window(x)
        if self.index is None:
            return window
        return _take(window, self.index).unflatten(1, (self.groups, -1)).flatten(0, 1)

    def collect(self, x):
        """Returns rows as `read` has them in the order of the window; a query is in one group."""
        return x if self.slots is None else _take(x.unflatten(0, (-1, self.groups)).flatten(1, 2), self.slots)

    def add(self, total, x) -> None:
        """Adds rows as `read` has them to `total`; a key may be in several groups."""
        window = self.window(total)
        if self.index is None:
            window.add_(x)
        else:
            x = x.unflatten(0, (-1, self.groups)).flatten(1, 2).to(total.dtype)
            window.scatter_add_(1, self.index[..., None].expand_as(x), x)


@dataclasses.dataclass
class Part:
    """Queries that meet keys, with a bias of the logarithms of weights [., rows, keys] (-inf: no weight)."""

    queries: Rows
    keys: Rows
    bias: torch.Tensor | None


def weights_of(side: int) -> int:
    """Returns the number of weights of a rectangle of `side` queries and keys."""
    return side * (BLOCK + _tile() + min(SAMPLES, side))


def parts(q, k, directions, side: int, sequences: slice, generator: torch.Generator):
    """Yields the parts of the rectangles of these sequences of 2 * side tokens; side is a multiple of BLOCK."""
    queries, keys = Rows(2 * side, sequences, side, 2 * side), Rows(2 * side, sequences, 0, side)
    order, query_blocks = _blocks(queries.window(q), keys.window(k), directions)
    yield _block_part(queries, keys, order, query_blocks, sum_type(q.dtype))
    yield _sampled_part(queries, keys, order, query_blocks, generator, sum_type(q.dtype))


def buckets(x, directions):
    """Returns the bucket [...] of rows [..., d]: the rank, in Gray code, of the signs of x . directions."""
    signs = (x @ directions.to(x.dtype)) > 0
    bits = signs.long().cumsum(-1) % 2  # Gray code to binary: each bit is the parity of the signs up to it
    places = 1 << torch.arange(bits.shape[-1] - 1, -1, -1, device=x.device)
    return (bits * places).sum(-1)


def _tile() -> int:
    return max(1, BLOCK // 4)


def _take(x, index):
    return x.gather(1, index[..., None].expand(-1, -1, x.shape[-1]))


def _blocks(q, k, directions):
    """Returns the keys [M, side] in the order of their buckets, and the block of each query."""
    query_buckets, key_buckets = buckets(q, directions), buckets(k, directions)
    ordered, order = key_buckets.sort(dim=1, stable=True)
    first = torch.searchsorted(ordered, query_buckets)
    last = torch.searchsorted(ordered, query_buckets, right=True)
    # A bucket may fill several blocks: its queries are spread over them by their own place.
    side = q.shape[1]
    place = first + torch.arange(side, device=q.device) * (last - first) // side
    return order, place.clamp(max=side - 1) // BLOCK


def _block_part(queries: Rows, keys: Rows, order, query_blocks, total) -> Part:
    side, tile = order.shape[1], _tile()
    blocks = side // BLOCK
    tiles = side // tile + blocks  # of all blocks together, at most: each block pads less than one
    ordered, by_block = query_blocks.sort(dim=1, stable=True)
    counts = torch.zeros_like(order[:, :blocks]).scatter_add_(1, query_blocks, torch.ones_like(order))
    tile_counts = (counts + tile - 1) // tile
    tile_ends = tile_counts.cumsum(1)
    places = torch.arange(side, device=order.device).expand_as(order)
    before = (tile_ends - tile_counts) * tile - (counts.cumsum(1) - counts)  # padded rows before each block
    slots = torch.empty_like(order).scatter_(1, by_block, places + before.gather(1, ordered))
    index = order.new_zeros(len(order), tiles * tile).scatter_(1, slots, places)
    empty = torch.full(index.shape, -torch.inf, dtype=total, device=order.device).scatter_(1, slots, 0.0)
    numbers = torch.arange(tiles, device=order.device).expand(len(order), -1)
    tile_blocks = torch.searchsorted(tile_ends, numbers.contiguous(), right=True).clamp(max=blocks - 1)
    tile_keys = _take(order.unflatten(1, (blocks, BLOCK)), tile_blocks).flatten(1)
    return Part(
        dataclasses.replace(queries, index=index, groups=tiles, slots=slots),
        dataclasses.replace(keys, index=tile_keys, groups=tiles),
        empty.reshape(-1, tile, 1),
    )


def _sampled_part(queries: Rows, keys: Rows, order, query_blocks, generator, total) -> Part:
    side = order.shape[1]
    samples = min(SAMPLES, side)
    columns = torch.rand(order.shape, generator=generator, device=order.device).topk(samples, dim=1).indices
    ranks = torch.arange(side, device=order.device).expand_as(order)
    key_blocks = torch.empty_like(order).scatter_(1, order, ranks // BLOCK).gather(1, columns)
    own = query_blocks[:, :, None] == key_blocks[:, None]
    bias = torch.full(own.shape, math.log(side / samples), dtype=total, device=order.device).masked_fill_(own, -torch.inf)
    return Part(queries, dataclasses.replace(keys, index=columns), bias)
