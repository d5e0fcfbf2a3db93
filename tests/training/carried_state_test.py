"""Chunks with a carried state are the whole sequence: values, gradients within reach, and what the cut removes."""

import unittest
from unittest import mock

import torch

import support

from polysketch_tools.model_config import ATTENTION_KINDS
from polysketch_training import block_attention

# float64. A weight's sum has at most 150 tokens or 90 features, in another order for another split; two layers, and norms
# and quotients that magnify by less than 50 each way.
TOLERANCE = 2**-53 * 150 * 50 * 50


def run_in_chunks(model, tokens, sizes, positions=None):
    state, logits = None, []
    for chunk in tokens.split(sizes, dim=1):
        out = model(chunk, state=state, positions=positions if state is None else None, want_state=True)
        state = out.state
        logits.append(out.logits)
    return torch.cat(logits, dim=1), state


def largest(x):
    return x.abs().max().item()


class CarriedStateTest(unittest.TestCase):
    def setUp(self):
        # Segments of two blocks of 16, so that 150 tokens cross several.
        for name, value in (("SEGMENT_TOKENS", 32), ("RECOMPUTE_TOKENS", 1000)):
            patch = mock.patch.object(block_attention, name, value)
            patch.start()
            self.addCleanup(patch.stop)

    def expect_equal(self, got, want, what):
        self.assertLess(largest(got - want), TOLERANCE * largest(want), what)

    def test_any_split_gives_the_whole_sequence(self):
        for kind in ATTENTION_KINDS:
            for gated in (False, True) if kind in support.RECURRENT_KINDS else (False,):
                model = support.small_model(kind, decay_gate=gated)
                tokens = support.tokens_for(model, 2, 150)
                with torch.no_grad():
                    whole = model(tokens, want_state=True)
                    for sizes in ([75, 75], [16, 32, 64, 38], [5, 11, 1, 40, 93], [149, 1]):
                        with self.subTest(kind=kind, gated=gated, sizes=sizes):
                            logits, state = run_in_chunks(model, tokens, sizes)
                            self.expect_equal(logits, whole.logits, "logits")
                            self.assertTrue(torch.equal(state.positions, torch.tensor([150, 150])))
                            after = support.tokens_for(model, 2, 3)
                            self.expect_equal(model(after, state=state).logits, model(after, state=whole.state).logits, "after")

    def test_without_its_state_a_chunk_is_another_one(self):
        for kind in ATTENTION_KINDS:
            model = support.small_model(kind)
            tokens = support.tokens_for(model, 2, 64)
            with torch.no_grad():
                whole = model(tokens).logits[:, 32:]
                alone = model(tokens[:, 32:], positions=torch.tensor([32, 32])).logits
            self.assertGreater(largest(alone - whole), 1e-3, kind)

    def test_gradients_flow_through_a_state_with_history(self):
        for kind, gated in support.MODELS:
            with self.subTest(kind=kind, gated=gated):
                model = support.small_model(kind, decay_gate=gated)
                tokens = support.tokens_for(model, 2, 100)
                parameters = list(model.parameters())
                whole = torch.autograd.grad(model(tokens).logits.square().mean(), parameters)
                split = torch.autograd.grad(run_in_chunks(model, tokens, [60, 40])[0].square().mean(), parameters)
                scale = max(largest(g) for g in whole)
                for (name, _), want, got in zip(model.named_parameters(), whole, split):
                    # Gradients of one parameter cancel to zero in part: the scale is the largest of all.
                    self.assertLess(largest(got - want), 100 * TOLERANCE * scale, name)

    def test_detach_cuts_the_gradient_and_changes_no_value(self):
        model = support.small_model("learned_sketch_mixed")
        tokens = support.tokens_for(model, 2, 96)
        first = model(tokens[:, :48], want_state=True)
        joined, cut = model(tokens[:, 48:], state=first.state), model(tokens[:, 48:], state=first.state.detach())
        self.assertTrue(torch.equal(joined.logits, cut.logits))
        key = model.layers[0].attn.qkv.weight
        with_history, without = (torch.autograd.grad(o.logits.square().mean(), key, retain_graph=True)[0] for o in (joined, cut))
        self.assertGreater(largest(with_history - without), 1e-6)

    def test_recomputed_segments_have_the_same_gradients(self):
        for gated in (False, True):
            model = support.small_model("learned_sketch_mixed", decay_gate=gated)
            tokens = support.tokens_for(model, 2, 150)
            kept = torch.autograd.grad(model(tokens).logits.square().mean(), list(model.parameters()))
            with mock.patch.object(block_attention, "RECOMPUTE_TOKENS", 32):
                again = torch.autograd.grad(model(tokens).logits.square().mean(), list(model.parameters()))
            for a, b in zip(kept, again):
                self.assertTrue(torch.equal(a, b))

    def test_start_within_a_block(self):
        """A sequence at position 21 has the blocks of absolute positions, split or not."""
        model = support.small_model("random_sketch_mixed")
        tokens, start = support.tokens_for(model, 2, 90), torch.tensor([21, 21 + 160])
        with torch.no_grad():
            whole = model(tokens, positions=start).logits
            split, state = run_in_chunks(model, tokens, [11, 50, 29], start)
            other = model(tokens, positions=torch.tensor([16, 176])).logits
        self.expect_equal(split, whole, "split")
        self.assertTrue(torch.equal(state.positions, start + 90))
        self.assertGreater(largest(other - whole), 1e-3)
        with self.assertRaisesRegex(ValueError, "within the block"):
            model(tokens, positions=torch.tensor([21, 22]))

    def test_reset_rows_start_anew(self):
        for kind in support.RECURRENT_KINDS:
            with self.subTest(kind):
                model = support.small_model(kind, decay_gate=True)
                tokens = support.tokens_for(model, 2, 96)
                with torch.no_grad():
                    state = model(tokens[:, :48], want_state=True).state
                    reset = state.reset_rows(torch.tensor([False, True]), torch.tensor([0, 320]))
                    got = model(tokens[:, 48:], state=reset).logits
                    kept = model(tokens[:, 48:], state=state).logits
                    fresh = model(tokens[1:, 48:], positions=torch.tensor([320])).logits
                self.expect_equal(got[:1], kept[:1], "kept row")
                self.expect_equal(got[1:], fresh, "fresh row")

    def test_no_gradient_reaches_a_later_token(self):
        """Causality: the loss of the first 40 tokens does not depend on the 41st."""
        for kind in ATTENTION_KINDS:
            model = support.small_model(kind)
            tokens, changed = support.rows_that_part(model, 80, 40)
            with torch.no_grad():
                a, b = model(tokens).logits, model(changed).logits
            self.assertTrue(torch.equal(a[:, :40], b[:, :40]), kind)
            self.assertGreater(largest(a[:, 40:] - b[:, 40:]), 1e-3)


if __name__ == "__main__":
    unittest.main()
