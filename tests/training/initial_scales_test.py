"""Initial scales of the mixed kinds: the near norms', and a far part that starts with the near part's mean weight."""

import unittest

import torch

import support
from support import small_config
from train_support import TrainTest

from polysketch_tools.errors import ToolError
from polysketch_training import PolysketchModel
from polysketch_training.export import load_run
from polysketch_training.initial_scales import mean_weights, set_initial_scales

KINDS = ("learned_sketch_mixed", "random_sketch_mixed")


def model_of(kind: str, **changes) -> PolysketchModel:
    torch.manual_seed(1)  # of all but the sketches
    return PolysketchModel(small_config(kind, emb_dim=128, sketch_size=32, **changes), seed=1)


class InitialScalesTest(unittest.TestCase):
    def test_mean_weights_of_normal_rows(self):
        """Normed rows of d elements are uniform on a sphere of radius sqrt(d) in d - 1 dimensions: the mean of (q.k)^4 is
        3 d^4 / ((d - 1) (d + 1)). Its deviation is 9.8 times that over 10^6 pairs of 1,024 rows each: below 5%."""
        for kind in KINDS:
            near, _ = mean_weights(model_of(kind).layers[0].attn)
            self.assertAlmostEqual(near / (3 * 64**4 / (63 * 65)), 1, delta=0.05)

    def test_near_scale(self):
        for kind in KINDS:
            model = model_of(kind)
            before = mean_weights(model.layers[1].attn)
            set_initial_scales(model, 0.3, False)
            near, far = mean_weights(model.layers[1].attn)
            self.assertAlmostEqual(near / (before[0] * 0.3**8), 1, delta=1e-4)
            self.assertEqual(far, before[1])

    def test_balanced_parts(self):
        scaled = {"learned_sketch_mixed": "sketch.branch1.level1.down.weight", "random_sketch_mixed": "qk_norm.scale"}
        for kind in KINDS:
            for near_scale in (0.3, 0.5, 1.0):
                with self.subTest(kind, near_scale=near_scale):
                    model, as_drawn = model_of(kind), model_of(kind).state_dict()
                    set_initial_scales(model, near_scale, True)
                    for layer in model.layers:
                        near, far = mean_weights(layer.attn)
                        self.assertAlmostEqual(far / near, 1, delta=0.01)
                        # Other rows too, within the sampling error of the mean.
                        near, far = mean_weights(layer.attn, seed=7)
                        self.assertAlmostEqual(far / near, 1, delta=0.25)
                    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, as_drawn[name])}
                    near_norms = ["near_q_norm.scale", "near_k_norm.scale"] if near_scale != 1 else []
                    self.assertEqual(changed, {f"layers.{i}.attn.{name}" for i in (0, 1) for name in [scaled[kind], *near_norms]})

    def test_a_weight_that_a_sketch_does_not_reach(self):
        """g has elements of at most sqrt(2), so (g.g)^2 is at most 16."""
        model = PolysketchModel(small_config("learned_sketch_mixed", emb_dim=128, sketch_size=2), seed=1)
        with self.assertRaisesRegex(ToolError, "expected a mean near weight that a sketch of 2 columns reaches, found 1.2"):
            set_initial_scales(model, 1.0, True)


class OptionsTest(TrainTest):
    def test_a_run(self):
        self.train("run", "--near-scale=0.5", "--balance-parts", "--steps=1", "--learning-rate=1e-9")
        model, settings = load_run(self.dir / "run")[:2]
        self.assertTrue(settings.recipe.balance_parts)
        for layer in model.layers:
            torch.testing.assert_close(layer.attn.near_q_norm.scale, torch.full((16,), 0.5))
            near, far = mean_weights(layer.attn)
            self.assertAlmostEqual(far / near, 1, delta=0.02)
        with self.assertRaisesRegex(ToolError, "holds a run with near_scale 0.5, found 1.0"):
            self.train("run", "--balance-parts", "--steps=1", "--learning-rate=1e-9")

    def test_what_is_refused(self):
        kv = f"--config={self.write_config('kv.json', attention='softmax', near_power=None, sketch_size=None)}"
        for options, words in (
            (["--near-scale=0"], "--near-scale: expected a number above 0, found 0.0"),
            ([kv, "--sequences=packed", "--near-scale=0.3"], "--near-scale: expected a new model of a mixed kind, found softmax"),
            ([f"--init={support.DEMO}", "--balance-parts"], "--balance-parts: expected a new model of a mixed kind, found --init"),
        ):
            with self.subTest(words), self.assertRaisesRegex(ToolError, words):
                self.train("run", *options)


if __name__ == "__main__":
    unittest.main()
