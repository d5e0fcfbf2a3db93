"""Passes of the trainer over streamed rows: a row continues its own text alone, the gradient ends with the pass."""

import pathlib
import tempfile
import unittest

import numpy as np
import torch
from accelerate.state import AcceleratorState, GradientState

import support

from polysketch_training.attention import block_of
from polysketch_training.batches import Batches
from polysketch_training.presets import Recipe
from polysketch_training.token_file import Tokens
from polysketch_training.trainer import Trainer, make_accelerator

LENGTH, ROWS, PASSES = 32, 3, 12
# float64, as in carried_state_test.py: at most PASSES * LENGTH tokens instead of 150.
TOLERANCE = 2**-53 * PASSES * LENGTH * 50 * 50


class StreamedRowsTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.dir = pathlib.Path(folder.name)

    def batches(self, model) -> Batches:
        """Equal draws each time. A row starts anew every third pass in the mean, some at high positions."""
        ids = np.random.default_rng(7).integers(model.config.vocab_size, size=3000).astype(np.uint16)
        return Batches(Tokens(ids, np.array([0, 1000])), self.recipe(), block_of(model.config))

    def recipe(self) -> Recipe:
        return Recipe(
            steps=PASSES,
            warmup_steps=0,
            learning_rate=1,
            batch=ROWS,
            length=LENGTH,
            sequences="streamed",
            stream_chunks=3,
            max_offset=1 << 12,
        )

    def trainer(self, model) -> Trainer:
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()
        accelerator = make_accelerator(self.recipe(), "f32", cpu=True)
        return Trainer(model, self.batches(model), self.recipe(), accelerator, self.dir, save_every=100, keep=1)

    def test_each_row_has_its_own_past_alone(self):
        """The loss of a pass is that of its tokens after all tokens since each row's start, and nothing else."""
        for gated in (False, True):
            model = support.small_model("learned_sketch_mixed", decay_gate=gated)
            trainer, batches, pasts, restarts = self.trainer(model), self.batches(model), [None] * ROWS, 0
            for _ in range(PASSES):
                batch, losses = batches.next(), []
                for row in range(ROWS):
                    if batch.starts[row]:
                        restarts += pasts[row] is not None
                        pasts[row] = (batch.positions[row : row + 1], batch.tokens[row : row + 1, :0])
                    start, past = pasts[row]
                    whole = torch.cat([past, batch.tokens[row : row + 1]], dim=1)
                    targets = torch.cat([torch.full_like(past, -100), batch.targets[row : row + 1]], dim=1)
                    with torch.no_grad():
                        losses.append(model(whole, positions=start, targets=targets).loss)
                    pasts[row] = (start, whole)
                want = torch.stack(losses).mean()
                self.assertLess(abs(trainer._loss().item() - want.item()), TOLERANCE * want.item())
            self.assertGreater(restarts, 5)

    def test_the_gradient_ends_at_the_start_of_a_pass(self):
        for gated in (False, True):
            model = support.small_model("learned_sketch_mixed", decay_gate=gated)
            trainer, batches, state = self.trainer(model), self.batches(model), None
            parameters = list(model.parameters())
            for _ in range(PASSES):
                batch = batches.next()
                if state is not None:
                    state = state.reset_rows(batch.starts, batch.positions)
                positions = batch.positions if state is None else None
                out = model(batch.tokens, state=state, positions=positions, targets=batch.targets, want_state=True)
                with torch.no_grad():
                    state = model(batch.tokens, state=state, positions=positions, want_state=True).state
                want = torch.autograd.grad(out.loss, parameters)
                got = torch.autograd.grad(trainer._loss(), parameters)
                for a, b in zip(got, want):
                    self.assertTrue(torch.equal(a, b))


if __name__ == "__main__":
    unittest.main()
