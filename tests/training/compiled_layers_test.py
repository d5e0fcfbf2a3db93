"""Layers that TorchInductor has compiled, with the library's attention and sketches, beside the same layers without it."""

import os
import pathlib
import sysconfig
import tempfile
import unittest

import torch

import support
from library_attention_test import library_or_skip
from train_support import TrainTest


def compiler_or_skip(test):
    """Compiled files go to a folder of the test."""
    if not pathlib.Path(sysconfig.get_path("include"), "Python.h").is_file():
        test.skipTest("no headers of Python, which TorchInductor needs on a CPU")
    folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    test.addCleanup(folder.cleanup)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder.name
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


def graphs():
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


class CompiledLayersTest(TrainTest):
    def setUp(self):
        super().setUp()
        self.device = library_or_skip(self)
        compiler_or_skip(self)

    def gradients(self, model, tokens):
        loss = model(tokens[:, :-1], targets=tokens[:, 1:]).loss
        return [loss, *torch.autograd.grad(loss, model.parameters())]

    def test_loss_and_gradients(self):
        sizes = {"emb_dim": 64, "num_heads": 2, "num_layers": 2, "sketch_size": 16}
        model = support.small_model("learned_sketch_mixed", dtype=torch.float32, **sizes).to(self.device)
        tokens = support.tokens_for(model, 1, 41).to(self.device)
        want = self.gradients(model, tokens)
        model.use_attention("library")
        model.compile_layers()
        got = self.gradients(model, tokens)
        error = max(((x - y).norm() / y.norm()).item() for x, y in zip(got, want, strict=True))
        # bf16 operands of two layers: LibraryInTheModelTest has the sum of one.
        self.assertLess(error, 2 * (2 * 10 + 12) * 2**-8)
        self.assertGreater(error, 2**-12, "the library was not called")
        compiled = graphs()
        self.assertGreater(compiled, 0)
        again = self.gradients(model, tokens)
        self.assertEqual(graphs(), compiled)  # and both layers run the graphs of one
        self.assertTrue(all(map(torch.equal, got, again)))

    def test_a_run(self):
        self.train("plain", "--attention=library")
        self.assertEqual(graphs(), 0)
        self.train("compiled", "--attention=library", "--compile")
        self.assertGreater(graphs(), 0)
        for (loss, _), (want, _) in zip(self.losses("compiled"), self.losses("plain"), strict=True):
            # Operands of 2^-8 that are rounded to the other side; a loss sums over 128 rows.
            self.assertAlmostEqual(float(loss), float(want), delta=2**-8)


if __name__ == "__main__":
    unittest.main()
