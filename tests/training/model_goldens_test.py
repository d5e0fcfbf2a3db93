"""The torch module gives the logits of the authors' code, and where there is no recording those of the equations."""

import unittest

import numpy as np
import torch

import support

import reference_model
from polysketch_tools import flax_names, safetensors
from polysketch_tools.model_config import ATTENTION_KINDS
from polysketch_training.server_tensors import load_folder, load_server_tensors, server_tensors

# Of the largest logit. Both sides compute in float32; the authors' angles add 2e-5 in logits of order 4 (docs/attention.md).
TOLERANCE = 1e-4


class RecordedLogitsTest(unittest.TestCase):
    def check(self, case: str):
        model = load_folder(support.GOLDENS / case)
        recorded = safetensors.read([support.GOLDENS / case / "golden.safetensors"])
        with torch.no_grad():
            logits = model(torch.from_numpy(recorded["tokens"].astype(np.int64))).logits.numpy()
        want = recorded["logits"]
        self.assertEqual(logits.shape, want.shape)
        self.assertLess(np.abs(logits - want).max(), TOLERANCE * np.abs(want).max())

    def test_every_case_has_its_logits(self):
        cases = sorted(path.name for path in support.GOLDENS.iterdir())
        self.assertGreaterEqual(len(cases), 7)
        for case in cases:
            with self.subTest(case):
                self.check(case)

    def test_a_moved_norm_is_found(self):
        """The comparison can fail: a scale changed by a hundredth is outside the tolerance."""
        model = load_folder(support.GOLDENS / "learned_sketch_mixed")
        recorded = safetensors.read([support.GOLDENS / "learned_sketch_mixed/golden.safetensors"])
        with torch.no_grad():
            model.layers[0].attn.near_q_norm.scale.mul_(1.01)
            logits = model(torch.from_numpy(recorded["tokens"].astype(np.int64))).logits.numpy()
        want = recorded["logits"]
        self.assertGreater(np.abs(logits - want).max(), TOLERANCE * np.abs(want).max())


class RecordedFilesTest(unittest.TestCase):
    """The recordings as they came from the authors' code, where they lie beside the tree."""

    def test_every_recording(self):
        folders = sorted(path.parent for path in (support.SHARED / "goldens").glob("*/golden.npz"))
        if not folders:
            self.skipTest("the recordings are not beside the tree")
        for folder in folders:
            with self.subTest(folder.name):
                recorded = np.load(folder / "golden.npz")
                model = load_folder(support.GOLDENS / folder.name)
                with torch.no_grad():
                    logits = model(torch.from_numpy(recorded["tokens"].astype(np.int64))).logits
                want = recorded["logits"]
                self.assertLess(np.abs(logits.numpy() - want).max(), TOLERANCE * np.abs(want).max())
                logprobs = logits.log_softmax(-1)[:, :-1].numpy()
                next_ones = np.take_along_axis(logprobs, recorded["tokens"][:, 1:, None].astype(np.int64), -1)[..., 0]
                np.testing.assert_allclose(next_ones, recorded["next_logprobs"], rtol=0, atol=TOLERANCE * np.abs(want).max())


class EquationsTest(unittest.TestCase):
    """Every kind in float64 against the quadratic sum of tests/tools/reference_model.py, beyond the recorded lengths."""

    def check(self, kind: str, **changes):
        model = support.small_model(kind, **changes)
        tensors = {name: array.astype(np.float64) for name, array in server_tensors(model).items()}
        load_server_tensors(model, tensors)  # both sides now have weights of float32 exactly
        tokens = support.tokens_for(model, 1, 83)
        with torch.no_grad():
            logits = model(tokens).logits[0].numpy()
        config = vars(model.config)
        leaves = {flax_names.flax_path(n): a for n, a in tensors.items() if flax_names.drawn_layer(n) is None}
        drawn = [tensors.get(f"layers.{i}.attn.sketch.level0") for i in range(config["num_layers"])]
        want = reference_model.forward(leaves, config, tokens[0].numpy(), drawn if model.config.is_random else None)
        # Thetas are rounded to float32 here and not there: 2^-24 of an angle of at most 82, in gradients of order 1.
        np.testing.assert_allclose(logits, want, rtol=0, atol=82 * 2**-24 * np.abs(want).max())

    def test_kinds_without_recordings(self):
        for kind in ATTENTION_KINDS:
            if kind.startswith("learned_"):
                continue  # whose recordings the other tests read
            with self.subTest(kind):
                self.check(kind)

    def test_without_grain_size(self):
        self.check("linear", grain_size=None)


if __name__ == "__main__":
    unittest.main()
