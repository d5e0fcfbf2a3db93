"""polysketch-linearize --precision: what products round, and a run in bfloat16, stopped, torn and resumed."""

import contextlib
import io
import json
import shutil
import unittest

import torch

import linearize_support
from linearize_far_test import FAR
from linearize_support import LinearizeTest

from polysketch_tools.errors import ToolError
from polysketch_training.linearize import command
from polysketch_training.linearize.decoder import Decoder
from polysketch_training.linearize.products import products, resolve
from polysketch_training.linearize.scores import divergence

CPU = torch.device("cpu")
BF16 = ("--precision=bf16", *FAR)


class ProductsTest(unittest.TestCase):
    def test_factors(self):
        torch.manual_seed(1)
        a, b = torch.randn(64, 96), torch.randn(96, 80)
        exact, rounded = (x.double() @ y.double() for x, y in ((a, b), (a.bfloat16(), b.bfloat16())))
        sums = a.abs().double() @ b.abs().double()
        with products("f32", CPU):
            self.assertTrue(((a @ b - exact).abs() <= 96 * 2**-24 * sums).all())
        with self.assertRaises(KeyError), products("bf16", CPU):
            found = a @ b
            raise KeyError
        # Sums of 96 roundings of float32, and one of bfloat16. Those of exact factors differ by more.
        self.assertEqual(found.dtype, torch.bfloat16)
        bound = 96 * 2**-24 * sums + 2**-8 * rounded.abs()
        self.assertTrue(((found - rounded).abs() <= bound).all())
        self.assertFalse(((found - exact).abs() <= bound).all())
        self.assertTrue(((a @ b - exact).abs() <= 96 * 2**-24 * sums).all())  # as before

    def test_auto(self):
        self.assertEqual([resolve(name, CPU) for name in ("auto", "f32", "bf16")], ["f32", "f32", "bf16"])
        self.assertEqual(resolve("auto", torch.device("cuda")), "bf16")


class RunTest(LinearizeTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.whole = cls.dir / "whole"
        cls.run_all(cls(), cls.whole, *BF16)

    def test_divergence(self):
        """States in bfloat16 are multiplied for a loss and a gradient in float32."""
        decoder = Decoder(self.teacher, CPU)
        ids = linearize_support.random_tokens(100, 2)
        student = decoder.hidden(ids[::-1].copy())
        expected = divergence(decoder, student, decoder.hidden(ids))
        with products("bf16", CPU):
            teacher = decoder.hidden(ids).float()
            found = divergence(decoder, student, teacher)
        self.assertEqual(found[1].dtype, torch.float32)
        self.assertNotEqual(found[0], expected[0])
        self.assertAlmostEqual(found[0] / expected[0], 1, delta=0.02)

    def test_losses(self):
        """The steps of float32, but for roundings."""
        other = self.dir / "f32"
        self.run_all(other, *FAR, "--stop-after=distillation")
        recipe = json.loads((self.whole / "report.json").read_text())["recipe"]
        self.assertEqual(recipe["precision"], "bf16")
        for name in ("transfer/losses.csv", "distillation/losses.csv", "control/distillation/losses.csv"):
            found, expected = (
                [float(line.split(",")[1]) for line in (run / name).read_text().splitlines()[1:]] for run in (self.whole, other)
            )
            self.assertNotEqual(found, expected, name)
            for ours, theirs in zip(found, expected, strict=True):
                self.assertAlmostEqual(ours / theirs, 1, delta=0.1, msg=name)

    def test_same_bytes_after_a_torn_write_in_each_stage(self):
        out = self.dir / "torn"
        self.run_all(out, *BF16, "--minutes=1e-9", status=130)
        self.run_all(out, *BF16, "--stop-after=teacher")
        self.tear(out / "distillation/states.bin", 1001)
        self.run_all(out, *BF16, "--minutes=1e-9", status=130)
        self.run_all(out, *BF16, "--stop-after=distillation")
        (out / "control/distillation/state.pt").unlink()
        shutil.rmtree(out / "control/model")
        self.run_all(out, *BF16)
        self.check_same_files(self.whole, out)

    def test_other_precision(self):
        words = "transfer was begun with sequences .*'bf16'.*, found .*'f32'"
        with contextlib.redirect_stderr(io.StringIO()), self.assertRaisesRegex(ToolError, words):
            command.command(self.options(self.whole, *FAR))


if __name__ == "__main__":
    unittest.main()
