"""linformer in float64: the function against its definition by explicit masks, values and gradients; what the kind refuses."""

import unittest

import torch

import support

from polysketch_training import angles
from polysketch_training.linformer_attention import linformer_attention

BLOCK, ROWS = 16, 5
# float64. Sums of at most 90 weights and of 16 projected tokens, in another order; quotients that magnify by less than 50.
TOLERANCE = 2**-53 * 90 * 16 * 50


def definition(q, k, v, project_k, project_v):
    """One softmax over all tokens and all projected rows, each with a mask that says which queries it has."""
    tokens, (rows, block) = q.shape[2], project_k.shape
    blocks = tokens // block
    far = [x[:, :, : blocks * block].reshape(*x.shape[:2], blocks, block, x.shape[-1]) for x in (k, v)]
    far_k = torch.einsum("rs,bhjsd->bhjrd", project_k, far[0]).flatten(2, 3)
    far_v = torch.einsum("rs,bhjsd->bhjrd", project_v, far[1]).flatten(2, 3)
    t = torch.arange(tokens)[:, None]
    s = torch.arange(tokens)[None]
    near_mask = (s <= t) & (s // block == t // block)
    far_mask = torch.arange(blocks).repeat_interleave(rows)[None] < t // block
    scores = torch.cat([q @ far_k.mT, q @ k.mT], dim=-1) * q.shape[-1] ** -0.5
    weights = scores.masked_fill(~torch.cat([far_mask, near_mask], dim=-1), -torch.inf).softmax(-1)
    return weights @ torch.cat([far_v, v], dim=2)


def leaves(tokens: int, block: int = BLOCK, rows: int = ROWS) -> list[torch.Tensor]:
    """q, k, v, E, F."""
    torch.manual_seed(7)
    shapes = [(2, 3, tokens, 8)] * 3 + [(rows, block)] * 2
    return [torch.randn(shape, dtype=torch.float64).requires_grad_() for shape in shapes]


class LinformerTest(unittest.TestCase):
    def test_values_and_gradients(self):
        for tokens in (1, 15, 16, 17, 32, 90):
            with self.subTest(tokens=tokens):
                inputs = leaves(tokens)
                got, want = linformer_attention(*inputs), definition(*inputs)
                self.assertLess((got - want).abs().max(), TOLERANCE * want.abs().max())
                g = torch.randn_like(want)
                read = inputs if tokens > BLOCK else inputs[:3]  # one block has no projected rows
                ours, theirs = (torch.autograd.grad(out, read, g) for out in (got, want))
                scale = max(x.abs().max() for x in theirs)  # with one token those of q and k are zero
                for a, b in zip(ours, theirs):
                    self.assertLess((a - b).abs().max(), 100 * TOLERANCE * scale)

    def test_gradients_are_finite_differences(self):
        inputs = leaves(11, block=4, rows=2)
        self.assertTrue(torch.autograd.gradcheck(linformer_attention, inputs))

    def test_projected_rows_count(self):
        """Other matrices change the queries of the second block on, and none before."""
        inputs = leaves(40)
        with torch.no_grad():
            base = linformer_attention(*inputs)
            for i in (3, 4):
                other = linformer_attention(*inputs[:i], inputs[i] + 1, *inputs[i + 1 :])
                self.assertTrue(torch.equal(other[:, :, :BLOCK], base[:, :, :BLOCK]))
                self.assertGreater((other - base)[:, :, BLOCK:].abs().amin(dim=(0, 1, 3)).min(), 0)

    def test_the_module_is_the_function(self):
        """The matrices of a layer are E and F, its block is grain_size."""
        model = support.small_model("linformer", num_layers=1)
        attn, seen = model.layers[0].attn, []
        attn.out.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        attn.qkv.register_forward_hook(lambda _, __, out: seen.append(out))
        with torch.no_grad():
            model(support.tokens_for(model, 2, 40))
            qkv, got = seen
            q, k, v = qkv.reshape(2, 40, 3, 2, -1).permute(2, 0, 3, 1, 4)
            positions = torch.arange(40)[None]
            cos, sin = (x[:, None] for x in angles.cos_sin(positions, q.shape[-1] // 2, torch.float64))
            q, k = angles.rotate(q, cos, sin), angles.rotate(k, cos, sin)
            want = definition(q, k, v, attn.project_k.weight, attn.project_v.weight)
        want = want.transpose(1, 2).flatten(2)
        self.assertEqual(attn.project_k.weight.shape, (4, 16))
        self.assertLess((got - want).abs().max(), 10 * TOLERANCE * want.abs().max())


if __name__ == "__main__":
    unittest.main()
