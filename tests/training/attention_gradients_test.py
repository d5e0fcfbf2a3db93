"""Outputs and gradients of attention in float64 against the recordings of the authors' functions (goldens/attention)."""

import unittest

import numpy as np
import torch

import support

from polysketch_training.block_attention import Rows, Weights, block_attention, integer_power
from polysketch_training.cache_attention import cache_attention

# Both sides are float64. An output is a quotient of sums of at most 128 tokens or 640 features; a gradient adds two more such
# sums, and cancellation costs up to the ratio of the sum of magnitudes to the result, taken as 1000.
TOLERANCE = 2**-53 * 3 * 640 * 1000
FOLDER = support.SHARED / "goldens/attention"


@unittest.skipUnless(FOLDER.is_dir(), "the recordings are not beside the tree")
class AttentionGradientsTest(unittest.TestCase):
    def load(self, name: str):
        recorded = np.load(FOLDER / f"{name}.npz")
        inputs = {
            key: torch.from_numpy(recorded[key]).double().requires_grad_()
            for key in ("query", "key", "value", "query_near", "key_near")
            if key in recorded
        }
        return recorded, inputs

    def check(self, recorded, inputs, out):
        self.expect_close(out, recorded["out"], "out")
        gradients = torch.autograd.grad((out * torch.from_numpy(recorded["g"])).sum(), list(inputs.values()))
        for name, gradient in zip(inputs, gradients):
            self.expect_close(gradient, recorded[f"grad_{name}"], name)

    def expect_close(self, got, want, what):
        error = np.abs(got.detach().numpy() - want).max() / np.abs(want).max()
        self.assertLess(error, TOLERANCE, what)

    def blocked(self, recorded, inputs, far_q, far_k, **near):
        weights = Weights(block=int(recorded["block"]), near_power=int(recorded.get("power", 4)))
        rows = Rows(far_q=far_q, far_k=far_k, v=inputs["value"], **near)
        self.check(recorded, inputs, block_attention(rows, weights)[0])

    def test_squared(self):
        recorded, inputs = self.load("squared")
        self.blocked(recorded, inputs, inputs["query"], inputs["key"])

    def test_mixed(self):
        recorded, inputs = self.load("mixed_p4")
        near = {"near_q": inputs["query_near"], "near_k": inputs["key_near"]}
        self.blocked(recorded, inputs, inputs["query"], inputs["key"], **near)

    def test_random(self):
        for name in ("random_gaussian", "random_hadamard"):
            with self.subTest(name):
                recorded, inputs = self.load(name)
                first, second = (torch.from_numpy(recorded[f"sketch{i}"]) for i in (1, 2))
                sketched = [(inputs[x] @ first) * (inputs[x] @ second) for x in ("query", "key")]
                self.blocked(recorded, inputs, *sketched)

    def test_polynomial(self):
        for power in (2, 4, 8):
            with self.subTest(power=power):
                recorded, inputs = self.load(f"polynomial_p{power}")
                rows = (inputs[x] for x in ("query", "key", "value"))
                out, _ = cache_attention(*rows, weigh=lambda x: integer_power(x, power))
                self.check(recorded, inputs, out)


if __name__ == "__main__":
    unittest.main()
