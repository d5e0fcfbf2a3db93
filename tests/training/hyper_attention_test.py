"""hyperattention in float64, with short exact parts and small blocks: its definition query by query, the cases in which it is
exact, causality, the merge, gradients."""

import math
import unittest
from unittest import mock

import torch
from torch.nn import functional

from polysketch_training import hyper_attention, hyper_rectangle

WIDTH, BITS = 8, 4
# float64. Sums of at most 150 weights, in parts that are merged; quotients and exponentials that magnify by less than 50.
TOLERANCE = 2**-53 * 150 * 50


def sizes(case: unittest.TestCase, exact: int, block: int, samples: int) -> None:
    for module, changes in (
        (hyper_attention, {"EXACT_TOKENS": exact, "_QUERY_ROWS": 3, "_CPU_WEIGHTS": 500}),
        (hyper_rectangle, {"BLOCK": block, "SAMPLES": samples}),
    ):
        patch = mock.patch.multiple(module, **changes)
        patch.start()
        case.addCleanup(patch.stop)


def inputs(tokens: int, dtype=torch.float64) -> list[torch.Tensor]:
    """q, k, v [2, 2, tokens, WIDTH] and the directions."""
    torch.manual_seed(13)
    rows = [torch.randn(2, 2, tokens, WIDTH, dtype=dtype) for _ in range(3)]
    return [*(x.requires_grad_() for x in rows), torch.randn(WIDTH, BITS)]


def sampled(*arguments):
    """hyper_attention with the same samples in every call."""
    torch.manual_seed(17)
    return hyper_attention.hyper_attention(*arguments)


def softmax(q, k, v):
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def gray_codes(bits: int) -> list[tuple[int, ...]]:
    """The reflected code: all tuples of bits, each with one bit changed from the tuple before it."""
    if bits == 0:
        return [()]
    shorter = gray_codes(bits - 1)
    return [(0, *code) for code in shorter] + [(1, *code) for code in reversed(shorter)]


CODES = gray_codes(BITS)


def bucket(row, directions) -> int:
    return CODES.index(tuple(int(x > 0) for x in row @ directions.double()))


def met_keys(q, k, directions, block: int, samples: list[int]) -> list[dict[int, float]]:
    """Of a rectangle of one sequence: for each query, the factors of the weights of the keys that it meets."""
    side, key_buckets = len(k), [bucket(row, directions) for row in k]
    order = sorted(range(side), key=lambda s: (key_buckets[s], s))
    result = []
    for place, row in enumerate(q):
        own = bucket(row, directions)
        below, equal = sum(b < own for b in key_buckets), key_buckets.count(own)
        first = min(below + place * equal // side, side - 1) // block * block
        met = {s: 1.0 for s in order[first : first + block]}
        result.append({s: side / len(samples) for s in samples} | met)
    return result


def definition(q, k, v, directions, exact: int, block: int, samples: dict) -> torch.Tensor:
    """Of one sequence [n, d], n = exact * 2^i. samples: those of the rectangle of the tokens begin to end, by (begin, end)."""
    out, keys = torch.empty_like(v), [dict.fromkeys(range(t // exact * exact, t + 1), 1.0) for t in range(len(q))]

    def divide(begin: int, end: int) -> None:
        if end - begin == exact:
            return
        middle = (begin + end) // 2
        met = met_keys(q[middle:end], k[begin:middle], directions, block, samples[begin, end])
        for t, factors in enumerate(met, middle):
            keys[t] |= {begin + s: factor for s, factor in factors.items()}
        divide(begin, middle)
        divide(middle, end)

    divide(0, len(q))
    for t, factors in enumerate(keys):
        weights = {s: f * math.exp(float(q[t] @ k[s]) / math.sqrt(WIDTH)) for s, f in factors.items()}
        out[t] = sum(w * v[s] for s, w in weights.items()) / sum(weights.values())
    return out


class DefinitionTest(unittest.TestCase):
    def record(self) -> list:
        """Returns a list that gets (side, sequences, columns) of every sampled part."""
        recorded, original = [], hyper_rectangle._sampled_part

        def recording(*arguments):
            part = original(*arguments)
            recorded.append((part.queries.length // 2, part.queries.sequences, part.keys.index))
            return part

        patch = mock.patch.object(hyper_rectangle, "_sampled_part", recording)
        patch.start()
        self.addCleanup(patch.stop)
        return recorded

    def test_query_by_query(self):
        exact, block, tokens = 16, 4, 128
        sizes(self, exact, block, samples=3)
        q, k, v, directions = inputs(tokens)
        with torch.no_grad():
            recorded = self.record()
            got = sampled(q, k, v, directions).flatten(0, 1)
            samples = [{} for _ in got]
            for side, sequences, columns in recorded:
                for row, drawn in zip(range(sequences.start, sequences.stop), columns.tolist()):
                    self.assertEqual(len(set(drawn)), 3)
                    sequence, pair = divmod(row, tokens // (2 * side))
                    samples[sequence][2 * side * pair, 2 * side * (pair + 1)] = drawn
            self.assertEqual([len(x) for x in samples], [7] * 4)  # 4, 2 and 1 rectangles of each sequence
            for i, (one_q, one_k, one_v) in enumerate(zip(*(x.flatten(0, 1) for x in (q, k, v)))):
                want = definition(one_q, one_k, one_v, directions, exact, block, samples[i])
                self.assertLess((got[i] - want).abs().max(), TOLERANCE * want.abs().max())
            # The approximation is one: most queries of later halves meet fewer keys than softmax gives them.
            self.assertGreater((got - softmax(q, k, v).flatten(0, 1)).abs().max(), 0.1)

    def test_consecutive_buckets_differ_in_one_sign(self):
        rows = torch.tensor(CODES, dtype=torch.float64) * 2 - 1
        self.assertEqual(hyper_rectangle.buckets(rows, torch.eye(BITS)).tolist(), list(range(2**BITS)))

    def test_samples_are_uniform(self):
        """Each of 32 keys is drawn 500 times in 2,000 draws of 8: 6 standard deviations of that count are 116."""
        sizes(self, 16, 16, samples=8)
        rows = torch.randn(2000, 64, WIDTH)
        parts = hyper_rectangle.parts(rows, rows, torch.randn(WIDTH, BITS), 32, slice(0, 2000), torch.Generator().manual_seed(1))
        counts = list(parts)[1].keys.index.flatten().bincount(minlength=32)
        self.assertLess((counts - 500).abs().max(), 116)


class ExactTest(unittest.TestCase):
    def expect_exact(self, tokens: int):
        q, k, v, directions = inputs(tokens)
        got, want = sampled(q, k, v, directions), softmax(q, k, v)
        self.assertLess((got - want).abs().max(), TOLERANCE * want.abs().max())
        g = torch.randn_like(want)
        for ours, theirs in zip(*(torch.autograd.grad(out, (q, k, v), g) for out in (got, want))):
            # One token has no gradient of its query and key: both may be exactly zero.
            self.assertLessEqual((ours - theirs).abs().max(), 100 * TOLERANCE * theirs.abs().max())

    def test_few_tokens(self):
        sizes(self, 64, 4, samples=1)
        for tokens in (1, 2, 63, 64):
            with self.subTest(tokens=tokens):
                self.expect_exact(tokens)

    def test_the_published_sizes(self):
        """Up to 4,096 tokens; beyond it, half of the queries meet fewer keys."""
        for tokens, exact in ((4096, True), (4097, False)):
            q, k, v, directions = (x.detach()[:1, :1] if x.dim() == 4 else x for x in inputs(tokens, torch.float32))
            difference = (sampled(q, k, v, directions) - softmax(q, k, v)).abs().amax(dim=(0, 1, 3))
            if exact:
                self.assertEqual(difference.max(), 0)
            else:
                # float32: sums of 4,097 weights.
                self.assertLess(difference[:2049].max(), 4097 * 2**-24)
                self.assertGreater(difference[2400:].max(), 0.01)

    def test_all_columns(self):
        sizes(self, 16, 4, samples=1000)
        for tokens in (17, 32, 33, 100, 128, 150):
            with self.subTest(tokens=tokens):
                self.expect_exact(tokens)

    def test_one_block(self):
        sizes(self, 16, 16, samples=1)
        for tokens in (17, 25, 32):
            with self.subTest(tokens=tokens):
                self.expect_exact(tokens)

    def test_one_bucket_and_all_columns(self):
        """Equal directions of all rows: queries are spread over the blocks of the bucket."""
        sizes(self, 16, 4, samples=1000)
        q, k, v, directions = inputs(128)
        directions = torch.ones_like(directions)
        with torch.no_grad():
            q, k = q.abs(), k.abs()
            got, want = sampled(q, k, v, directions), softmax(q, k, v)
            order, blocks = hyper_rectangle._blocks(q[0, :, 64:], k[0, :, :64], directions)
        self.assertLess((got - want).abs().max(), TOLERANCE * want.abs().max())
        self.assertTrue(torch.equal(blocks[0], torch.arange(64) // 4))
        self.assertTrue(torch.equal(order[0], torch.arange(64)))


class CausalityTest(unittest.TestCase):
    def test_later_tokens_change_no_earlier_output(self):
        sizes(self, 16, 4, samples=3)
        q, k, v, directions = (x.detach() for x in inputs(150))
        base = sampled(q, k, v, directions)
        for first in (1, 15, 16, 40, 64, 75, 100, 149):
            with self.subTest(first=first):
                changed = [torch.cat([x[:, :, :first], torch.randn_like(x[:, :, first:])], dim=2) for x in (q, k, v)]
                got = sampled(*changed, directions)
                # Not to the bit: an earlier query may be in another row of a tile, and of a product.
                self.assertLess((got - base)[:, :, :first].abs().max(), TOLERANCE * base.abs().max())
                self.assertGreater((got - base)[:, :, first:].abs().max(), 1e-3)

    def test_samples_are_drawn_anew(self):
        sizes(self, 16, 4, samples=3)
        arguments = inputs(64)
        first, second = (hyper_attention.hyper_attention(*arguments) for _ in range(2))
        self.assertTrue(torch.equal(first[:, :, :16], second[:, :, :16]))
        self.assertGreater((first - second).abs().max(), 1e-3)


class MergeTest(unittest.TestCase):
    def test_parts_are_the_whole(self):
        """Softmax over 30 keys of any size, in three parts; a part without a weight changes nothing."""
        torch.manual_seed(19)
        scores, v = 30 * torch.randn(5, 30, dtype=torch.float64), torch.randn(30, WIDTH, dtype=torch.float64)
        out, log_sums = torch.zeros(5, WIDTH, dtype=torch.float64), torch.full((5, 1), -torch.inf, dtype=torch.float64)
        for keys in (slice(0, 1), slice(1, 12), slice(12, 30)):
            part = scores[:, keys]
            hyper_attention._merge(out, log_sums, part.softmax(-1) @ v[keys], part.logsumexp(-1, keepdim=True))
            hyper_attention._merge(out, log_sums, torch.zeros_like(out), torch.full_like(log_sums, -torch.inf))
        want = scores.softmax(-1) @ v
        self.assertLess((out - want).abs().max(), TOLERANCE * want.abs().max())
        self.assertLess((log_sums - scores.logsumexp(-1, keepdim=True)).abs().max(), TOLERANCE * log_sums.abs().max())


class GradientTest(unittest.TestCase):
    def test_finite_differences(self):
        sizes(self, 8, 4, samples=2)
        for tokens in (16, 29):
            with self.subTest(tokens=tokens):
                q, k, v, directions = (x.detach()[:1, :1] if x.dim() == 4 else x for x in inputs(tokens))
                leaves = [x.clone().requires_grad_() for x in (q, k, v)]
                self.assertTrue(torch.autograd.gradcheck(lambda *x: sampled(*x, directions), leaves))

    def test_bf16(self):
        """Outputs and gradients have the type of the inputs; sums are float32."""
        sizes(self, 16, 4, samples=3)
        q, k, v, directions = inputs(100)
        want = torch.autograd.grad(sampled(q, k, v, directions).square().mean(), (q, k, v))
        half = [x.detach().bfloat16().requires_grad_() for x in (q, k, v)]
        got = torch.autograd.grad(sampled(*half, directions).square().mean(), half)
        for ours, theirs in zip(got, want):
            self.assertEqual(ours.dtype, torch.bfloat16)
            # A query or key near a hash's plane may move to another block: most rows are close, not all.
            close = (ours - theirs).abs().amax(-1) < 0.1 * theirs.abs().max()
            self.assertGreater(close.double().mean(), 0.9)


if __name__ == "__main__":
    unittest.main()
