"""The decay gate in float64: the module against its formula as a quadratic sum, values and gradients."""

import unittest
from unittest import mock

import torch

import support

from polysketch_tools.errors import ToolError
from polysketch_training import PolysketchModel, block_attention
from polysketch_training.block_attention import Rows, Weights

BLOCK, TOKENS = 16, 90
# As in carried_state_test.py.
TOLERANCE = 2**-53 * 150 * 50 * 50


def definition(rows: Rows, weights: Weights):
    """w[t,s] e^(G_t - G_s) over all pairs; the stabilizer does not decay."""
    s = torch.arange(rows.v.shape[2])
    t = s[:, None]
    far = rows.far_q @ rows.far_k.mT
    far = far**2 if weights.squared else far
    near = far if rows.near_q is None else (rows.near_q @ rows.near_k.mT) ** weights.near_power
    passed = rows.log_decay.cumsum(-1)
    decay = (passed[..., :, None] - passed[..., None, :]).masked_fill(s > t, -torch.inf).exp()
    w = torch.where(t // weights.block == s // weights.block, near, far) * decay
    return w @ rows.v / (weights.stabilizer + w.sum(-1, keepdim=True))


class DecayGateTest(unittest.TestCase):
    def rows(self, mixed: bool, squared: bool):
        torch.manual_seed(11)

        def leaf(width):
            x = torch.randn(2, 3, TOKENS, width, dtype=torch.float64) * width**-0.25
            return (x if squared else x.abs()).detach().requires_grad_()  # features of linear and performer are positive

        near = {"near_q": leaf(20), "near_k": leaf(20)} if mixed else {}
        decay = torch.nn.functional.logsigmoid(torch.randn(2, 3, TOKENS, dtype=torch.float64) + 1).requires_grad_()
        return Rows(far_q=leaf(12), far_k=leaf(12), v=leaf(16), log_decay=decay, **near)

    def test_values_and_gradients(self):
        for mixed, squared in ((True, True), (False, True), (False, False)):
            with self.subTest(mixed=mixed, squared=squared), mock.patch.object(block_attention, "SEGMENT_TOKENS", 32):
                rows, weights = self.rows(mixed, squared), Weights(block=BLOCK, squared=squared)
                leaves = [x for x in vars(rows).values() if x is not None]
                got, want = block_attention.block_attention(rows, weights)[0], definition(rows, weights)
                self.assertLess((got - want).abs().max(), TOLERANCE * want.abs().max())
                g = torch.randn_like(want)
                gradients = zip(torch.autograd.grad(got, leaves, g), torch.autograd.grad(want, leaves, g))
                for ours, theirs in gradients:
                    self.assertLess((ours - theirs).abs().max(), 100 * TOLERANCE * theirs.abs().max())

    def test_the_running_sum_is_float32_beside_16_bit_values(self):
        """After a token that forgets all, G is near -1000: bfloat16 has steps of 4 there, and log decays are -1/8."""
        rows, weights = self.rows(mixed=True, squared=True), Weights(block=BLOCK)
        rows = Rows(**{name: x.detach() for name, x in vars(rows).items()})
        rows.log_decay.fill_(-1 / 8)
        rows.log_decay[:, :, 0] = -1000
        want = definition(rows, weights)
        half = Rows(**{name: x.float() if name == "log_decay" else x.bfloat16() for name, x in vars(rows).items()})
        for segment in (32, 512):
            with mock.patch.object(block_attention, "SEGMENT_TOKENS", segment):
                got = block_attention.block_attention(half, weights)[0]
            # A dot product of rounded rows has an error of some 2^-9 of its terms, its fourth power four times that;
            # weights and values are rounded once more.
            self.assertLess((got - want).abs().max(), 2**-4 * want.abs().max())

    def test_biases_are_spread_from_6_to_12(self):
        model = PolysketchModel(support.small_config("learned_sketch_mixed", decay_gate=True))
        biases = torch.cat([layer.attn.gate.bias.data for layer in model.layers])
        torch.testing.assert_close(biases, torch.tensor([6.0, 8.0, 10.0, 12.0]))
        self.assertFalse(any(layer.attn.gate.weight.any() for layer in model.layers))

    def test_autocast_leaves_the_gate_in_float32(self):
        """A bias of 12 - 2^-6 is 12 in bfloat16."""
        model = support.small_model("learned_sketch_mixed", decay_gate=True, dtype=torch.float32)
        attention = model.layers[0].attn
        with torch.no_grad():
            attention.gate.weight.zero_()
            attention.gate.bias.fill_(12 - 2**-6)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                decay = attention._log_decay(torch.zeros(1, 3, 48, dtype=torch.bfloat16))
        want = torch.nn.functional.logsigmoid(torch.tensor(12 - 2**-6))
        torch.testing.assert_close(decay, want.expand(1, 2, 3), rtol=0, atol=0)

    def test_an_open_gate_is_no_gate(self):
        """sigmoid(50) is 1 in float64 to 2e-22: the gated model is the ungated one."""
        gated, plain = (support.small_model("learned_sketch_mixed", decay_gate=g) for g in (True, False))
        tokens = support.tokens_for(plain, 2, 80)
        with torch.no_grad():
            for layer in gated.layers:
                layer.attn.gate.weight.zero_()
                layer.attn.gate.bias.fill_(50)
            want, got = plain(tokens).logits, gated(tokens).logits
        self.assertLess((got - want).abs().max(), TOLERANCE * want.abs().max())

    def test_kv_kinds_refuse_it(self):
        for kind in ("softmax", "polynomial"):
            with self.assertRaisesRegex(ToolError, f'"decay_gate": expected false for attention {kind}, found True'):
                PolysketchModel(support.small_config(kind, decay_gate=True))


if __name__ == "__main__":
    unittest.main()
