"""polynomial_square and affine_square: their definition as a quadratic sum, gradients, learned and fixed coefficients."""

import unittest
from unittest import mock

import numpy as np
import torch

import support

from polysketch_tools import safetensors
from polysketch_tools.errors import ToolError
from polysketch_training import PolysketchModel, block_attention, layers
from polysketch_training.cache_attention import cache_attention
from polysketch_training.server_tensors import server_tensors

KINDS = ("polynomial_square", "affine_square")
GOLDENS = support.ROOT / "tests/data/polynomial_square"
BLOCK = 8


def squared(q, k, v, coefficients, alpha, beta):
    """out of polynomial_square."""
    return cache_attention(q, k, v, weigh=lambda x: layers.polynomial((x + alpha) / beta, coefficients).square())[0]


def affine(q, k, v, coefficients, alpha, beta):
    """out of affine_square, by its state."""
    far_q, far_k = layers.affine_rows(q, k, coefficients, alpha, beta)
    rows = block_attention.Rows(far_q=far_q, far_k=far_k, v=v)
    return block_attention.block_attention(rows, block_attention.Weights(block=BLOCK))[0]


class DefinitionTest(unittest.TestCase):
    def setUp(self):
        # Segments of two blocks, so that 53 tokens read the state of several.
        patch = mock.patch.object(block_attention, "SEGMENT_TOKENS", 2 * BLOCK)
        patch.start()
        self.addCleanup(patch.stop)

    def rows(self, degree: int):
        arrays = safetensors.read([GOLDENS / f"degree{degree}.safetensors"])
        rows = {name: torch.from_numpy(array.astype(np.float64)) for name, array in arrays.items()}
        inputs = [rows[name] for name in ("query", "key", "value", "coefficients")]
        return inputs, rows["alpha"].item(), rows["beta"].item(), rows["out"]

    def test_goldens(self):
        """float64 on both sides; the sums of up to 53 weights differ in order."""
        for degree in (1, 2, 3, 8):
            inputs, alpha, beta, want = self.rows(degree)
            for function in (squared, affine) if degree == 1 else (squared,):
                with self.subTest(degree=degree, function=function.__name__):
                    torch.testing.assert_close(function(*inputs, alpha, beta), want, rtol=1e-11, atol=1e-11)

    def test_float32_is_the_definition(self):
        """Within 1e-5, from a state too."""
        for degree in (1, 2, 3, 8):
            inputs, alpha, beta, want = self.rows(degree)
            narrow = [x.float() for x in inputs]
            for function in (squared, affine) if degree == 1 else (squared,):
                with self.subTest(degree=degree, function=function.__name__):
                    error = (function(*narrow, alpha, beta) - want).abs().max().item()
                    self.assertLess(error, 1e-5)

    def test_gradients_are_finite_differences(self):
        for degree in (1, 3):
            inputs, alpha, beta, _ = self.rows(degree)
            *rows, coefficients = inputs
            # Two blocks and a part; gradcheck moves every element.
            arguments = [x[:, :, :21, :] for x in rows] + [coefficients]
            arguments = [x.clone().requires_grad_() for x in arguments]
            for function in (squared, affine) if degree == 1 else (squared,):
                with self.subTest(degree=degree, function=function.__name__):
                    self.assertTrue(torch.autograd.gradcheck(lambda *x: function(*x, alpha, beta), arguments))

    def test_degree_one_is_affine(self):
        """A model of either kind with the tensors of the other."""
        for heads in (False, True):
            fields = {"power": 1, "alpha": -0.5, "beta": 8.0, "head_coefficients": heads}
            cached = support.small_model("polynomial_square", **fields)
            recurrent = PolysketchModel(support.small_config("affine_square", **fields)).double()
            recurrent.load_state_dict(cached.state_dict())
            tokens = support.tokens_for(cached, 2, 70)
            torch.testing.assert_close(recurrent(tokens).logits, cached(tokens).logits, rtol=1e-9, atol=1e-9)


class CoefficientsTest(unittest.TestCase):
    def test_learned_or_not(self):
        for kind in KINDS:
            for learned in (None, True, False):
                with self.subTest(kind, learned=learned):
                    model = support.small_model(kind, learned_coefficients=learned)
                    names = [name for name, _ in model.named_parameters() if name.endswith(".coefficients")]
                    self.assertEqual(len(names), 0 if learned is False else model.config.num_layers)
                    # Fixed ones are in the folder too.
                    self.assertIn("layers.1.attn.coefficients", server_tensors(model))

    def test_new_ones_are_those_of_a_geometric_sum(self):
        model = PolysketchModel(support.small_config("polynomial_square", head_coefficients=False))
        coefficients = model.layers[0].attn.coefficients
        self.assertEqual(coefficients.tolist(), [1.0] * 4)

    def test_every_coefficient_has_a_gradient(self):
        for kind in KINDS:
            model = support.small_model(kind)
            model(support.tokens_for(model, 2, 40)).logits.square().mean().backward()
            for layer in model.layers:
                self.assertTrue((layer.attn.coefficients.grad != 0).all(), kind)

    def test_what_is_refused(self):
        for kind, changes, words in (
            ("polynomial_square", {"power": 9}, r'"power": expected an integer in \[1, 8\], found 9'),
            ("affine_square", {"power": 2}, r'"power": expected an integer in \[1, 1\], found 2'),
            ("affine_square", {"beta": -1.0}, r'"beta": expected a number in \[1e-06, 1e\+06\], found -1.0'),
            ("polynomial_square", {"decay_gate": True}, '"decay_gate": expected false for attention polynomial_square'),
        ):
            with self.subTest(words), self.assertRaisesRegex(ToolError, words):
                PolysketchModel(support.small_config(kind, **changes))


if __name__ == "__main__":
    unittest.main()
