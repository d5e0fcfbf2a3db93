"""Far parts of polysketch-linearize: the attention against every weight, a run on a tiny teacher, killed and resumed, and what the server
computes of it."""

import contextlib
import io
import itertools
import json
import pathlib
import shutil
import tempfile
import types
import unittest

import safetensors.torch
import torch

import frame_models
import linearize_support
from frames_test import PROBE, instruction_sets
from linearize_support import LAYERS, LinearizeTest

from polysketch_tools.errors import ToolError
from polysketch_training.linearize import command
from polysketch_training.linearize.decoder import Decoder
from polysketch_training.linearize.distillation import Recipe
from polysketch_training.linearize.far import KINDS, LEARNED_SKETCH, LINEAR, FarPart, FarShape
from polysketch_training.linearize.transfer import FarRecipe, Transfer, visit
from polysketch_training.linearize.windows import Far, Window, attend

CPU = torch.device("cpu")
FAR = (
    "--far=affine_square",
    "--far-size=16",
    "--far-steps=4",
    "--far-length=150",
    "--window=64",
    "--sample-length=256",
    "--tokens-per-step=512",
    "--lengths=256",
    "--evaluation-lengths=256",
    "--evaluation-texts=1",
    "--steps=4",
    "--max-recall-loss=0.05",
)


def squares_and_exponentials(q, k, v, far_q, far_k, decay, scale: float, window: Window, length: float, squared: bool = True) -> torch.Tensor:
    """Every weight: q, k and v [B, H, n, d], log decays [B, H, n] or None, those of a group repeated; far rows, or features, without the
    length factor."""
    n = q.shape[2]
    t, s = torch.arange(n)[:, None], torch.arange(n)
    near = frame_models.visible(t, s, window.kind, window.size, window.sinks)
    far = (s <= t) & ~near
    shrink = (length / t.clamp(min=1)).clamp(max=1)
    products = far_q @ far_k.mT
    if decay is not None:
        sums = torch.nn.functional.pad(decay.cumsum(-1), (1, 0))
        first = ((t // window.size - 1) * window.size).clamp(min=0)
        shrink = shrink * (sums[..., first] - sums[..., None, 1:]).masked_fill(~far, 0).exp()
    weights = (q @ k.mT * scale).exp() * near + (products.square() if squared else products) * shrink * far
    return weights @ v / weights.sum(-1, keepdim=True)


class AttentionTest(unittest.TestCase):
    def test_far(self):
        """Values and gradients, of groups, blocks that are not whole, more of them than are computed at once, and more sinks than a
        window has tokens; of squares and of features, with a decay gate and without."""
        torch.manual_seed(1)
        for w, sinks, n, heads, kv_heads in ((16, 3, 100, 4, 2), (8, 0, 64, 3, 1), (4, 6, 201, 2, 2), (4, 1, 12, 2, 1)):
            window, group = Window(w, "blocks", sinks), heads // kv_heads
            leaves = [torch.randn(2, h, n, d, dtype=torch.float64, requires_grad=True)
                      for h, d in ((heads, 8), (kv_heads, 8), (kv_heads, 8), (heads, 16), (kv_heads, 16))]  # fmt: skip
            gates = torch.randn(2, kv_heads, n, dtype=torch.float64, requires_grad=True)
            for squared, gated in itertools.product((True, False), repeat=2):
                q, k, v, far_q, far_k = rows = leaves[:5] if squared else [*leaves[:3], leaves[3].exp(), leaves[4].exp()]
                decay = torch.nn.functional.logsigmoid(gates + 2) if gated else None
                leaves = [*leaves[:5], gates] if gated else leaves[:5]
                repeated = [x.repeat_interleave(group, 1) if x.shape[1] == kv_heads else x for x in rows]
                repeated.append(decay if decay is None else decay.repeat_interleave(group, 1))
                found = attend(q, k, v, 0.3, window, Far(far_q, far_k, squared, decay))
                expected = squares_and_exponentials(*repeated, 0.3, window, n, squared)
                along = torch.randn_like(expected)
                gradients = [torch.autograd.grad((out * along).sum(), leaves, retain_graph=True) for out in (found, expected)]
                with self.subTest(window=window, n=n, squared=squared, gated=gated):
                    # Sums of at most 201 products of order one in float64.
                    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)
                    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-9)

    def test_small_scores(self):
        """Scores of -300 in float32: the window's weights vanish beside those of the far part, but not where there is none."""
        torch.manual_seed(2)
        q, v, far = (torch.randn(1, 1, 40, 8) for _ in range(3))
        q[..., 0], k = 1.0, torch.zeros(1, 1, 40, 8)
        k[..., 0] = -300.0
        for sinks in (0, 30):
            window = Window(4, "blocks", sinks)
            out = attend(q, k, v, 1.0, window, Far(far, far))
            expected = squares_and_exponentials(*(x.double() for x in (q, k, v, far, far)), None, 1.0, window, 40)
            torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=1e-4)

    def test_decoder(self):
        """Folders with far parts, against transformers' layers with every weight in float64."""
        for name in ("llama_window_far", "qwen3_window_far", *(f"llama_window_far_{kind}" for kind in ("linear", "sketch", "gate"))):
            with self.subTest(name), tempfile.TemporaryDirectory() as folder:
                model = frame_models.random_model(name)
                frame_models.save(model, folder)
                tokens = frame_models.random_tokens(model, 220)
                expected = frame_models.logits_of(model, tokens)
                decoder = Decoder(pathlib.Path(folder), CPU)

                def difference():
                    found = decoder.hidden(tokens) @ decoder.head.T
                    return (found - expected).abs().max() / expected.abs().max()

                # As in frames_test: some hundred roundings of 2^-24, and angles of float32.
                self.assertLess(difference(), 1e-4)
                windows = [i for i, seen in enumerate(decoder.seen) if seen.window]
                decoder.set_windows(windows, far=False)
                self.assertGreater(difference(), 1e-2)


class FarPartTest(unittest.TestCase):
    def test_tensors(self):
        """Written and read: the same rows; of another shape: refused."""
        for kind in KINDS:
            with self.subTest(kind):
                self.check_tensors(kind)

    def check_tensors(self, kind: str):
        torch.manual_seed(4)
        part, again = (FarPart(FarShape(kind, 8, 30, decay_gate=kind != LINEAR), 4, 2, 16, 24, CPU) for _ in range(2))
        with torch.no_grad():
            for parameter in part.parameters():
                parameter.copy_(torch.randn_like(parameter))
        tensors = part.tensors(5)
        columns = 8 if kind == LEARNED_SKETCH else 16
        shapes = {"far_q.weight": [32, columns], "far_q.bias": [32], "far_k.weight": [16, columns], "far_k.bias": [16]}
        if kind == LINEAR:
            shapes["far_q.scale"] = [4]
        else:
            shapes |= {"far_gate.weight": [2, 24], "far_gate.bias": [2]}
        if kind == LEARNED_SKETCH:
            for branch, (level, inputs) in itertools.product((1, 2), ((0, 16), (1, 8))):
                of_level = {"norm.scale": [inputs], "norm.bias": [inputs], "up.weight": [64, inputs], "down.weight": [8, 64]}
                shapes |= {f"far_sketch.branch{branch}.level{level}.{name}": shape for name, shape in of_level.items()}
        found = {name.removeprefix("model.layers.5.self_attn."): list(tensor.shape) for name, tensor in tensors.items()}
        self.assertEqual(found, shapes)
        again.read(5, tensors)
        rows = torch.randn(1, 4, 50, 16), torch.randn(1, 2, 50, 16), torch.randn(1, 50, 24)
        for name in ("q", "k", *(["log_decay"] if kind != LINEAR else [])):
            torch.testing.assert_close(getattr(part.rows(*rows), name), getattr(again.rows(*rows), name), rtol=1e-5, atol=1e-5)
        with self.assertRaisesRegex(ToolError, "far_k.bias: expected 16 numbers, found none"):
            again.read(5, {name: tensor for name, tensor in tensors.items() if "k.bias" not in name})
        with self.assertRaisesRegex(ToolError, r"far_q.bias: expected 32 numbers, found \[24\]"):
            again.read(5, tensors | {"model.layers.5.self_attn.far_q.bias": torch.zeros(24)})


class FirstScalesTest(LinearizeTest):
    def test_no_head_is_worse(self):
        """Where attention transfer begins, no head is further from the teacher than window and sinks alone are, and some are nearer."""
        for kind in KINDS:
            with self.subTest(kind):
                self.check_heads(kind)

    def check_heads(self, kind: str):
        decoder = Decoder(self.teacher, CPU, Window(16, "blocks", 2))
        decoder.add_far(FarShape(kind, 16, 150), range(LAYERS))
        ids = linearize_support.random_tokens(200, 3)
        plan = types.SimpleNamespace(sequences=lambda step: [(0, ids)])
        recipe = Recipe(4, len(ids), (len(ids),), 0.0, 1, ("q",), 0.01, 0, "f32")
        Transfer(decoder, plan, FarRecipe(kind, 16, 150, 4, 0.01), recipe, self.dir / kind)
        ratios = []

        def see(i, attend, teacher):
            near, far = ((attend(part) - teacher)[:, :, 32:].square().sum((0, 2, 3)) for part in (None, decoder.far[i]))
            ratios.extend((far / near).tolist())

        visit(decoder, ids, see)
        self.assertEqual(len(ratios), 4 * LAYERS)
        self.assertLess(max(ratios), 1.001)  # the least scale is not zero
        self.assertLess(min(ratios), 0.99)


class Qwen3Test(LinearizeTest):
    """A teacher of the shape of Qwen3-0.6B: norms of q and k, a head that is not width / heads, two query heads a kv head, tied."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.teacher = cls.dir / "qwen3"
        linearize_support.write_teacher(cls.teacher, cls.text.read_text(), "qwen3", torch.bfloat16, head_dim=16)
        cls.whole = cls.dir / "whole"
        cls.run_all(cls(), cls.whole, *FAR)

    def test_report(self):
        report = json.loads((self.whole / "report.json").read_text())
        self.assertEqual(report["far"], {"kind": "affine_square", "size": 16, "length": 150, "steps": 4, "learning_rate": 0.01, "decay_gate": False})
        windows = [i for i in range(LAYERS) if i not in report["full"]]
        self.assertEqual([int(i) for i in report["transfer"]], windows)
        self.assertGreater(len(windows), 0)
        for errors in report["transfer"].values():
            self.assertLess(0, errors["far"])
            self.assertNotEqual(errors["far"], errors["window"])
        found = {row["model"]: row for row in report["evaluation"] if row["what"] == "text"}
        self.assertEqual(list(found), ["teacher", "windows, not trained", "control: windows, trained", "linearized"])
        self.assertNotEqual(found["linearized"]["loss"], found["control: windows, trained"]["loss"])
        self.assertEqual(list(report["curve"]), list(report["control_curve"]))
        text = (self.whole / "report.md").read_text()
        for words in ("## Attention transfer", "| mean |", "The control, the same without far parts", "| control: windows, trained |"):
            self.assertIn(words, text)

    def test_transfer_learns(self):
        rows = (self.whole / "transfer/losses.csv").read_text().splitlines()[1:]
        self.assertEqual(len(rows), 4)
        report = json.loads((self.whole / "report.json").read_text())
        errors = list(report["transfer"].values())
        # What the far part has learned is better than none, in the mean over the layers, on text that it did not see.
        self.assertLess(sum(one["far"] for one in errors), sum(one["window"] for one in errors))

    def test_folder(self):
        config = json.loads((self.whole / "model/config.json").read_text())
        control = json.loads((self.whole / "control/model/config.json").read_text())
        report = json.loads((self.whole / "report.json").read_text())
        kept = [i for i, error in report["transfer"].items() if error["far"] < error["window"]]
        self.assertEqual(report["far_layers"], [int(i) for i in kept])
        self.assertGreater(len(kept), 0)
        for i, one in enumerate(config["layer_types"]):
            expected = "full_attention" if i in report["full"] else "window_with_far_part" if str(i) in kept else "window_with_sinks"
            self.assertEqual(one, expected)
        self.assertEqual(control["layer_types"], [one.replace("far_part", "sinks") for one in config["layer_types"]])
        self.assertEqual([config[f"attention_far_{name}"] for name in ("kind", "size", "length")], ["affine_square", 16, 150])
        self.assertNotIn("attention_far_kind", control)
        tensors = safetensors.torch.load_file(self.whole / "model/model.safetensors")
        far = {name: tensor for name, tensor in tensors.items() if ".far_" in name}
        self.assertEqual(len(far), 4 * config["layer_types"].count("window_with_far_part"))
        self.assertEqual({tensor.dtype for tensor in far.values()}, {torch.float32})
        self.assertEqual({tensor.dtype for name, tensor in tensors.items() if name not in far}, {torch.bfloat16})
        beside = safetensors.torch.load_file(self.whole / "adapter/far.safetensors")
        self.assertEqual(far.keys(), beside.keys())
        for name, tensor in beside.items():
            self.assertEqual(tensor.dtype, torch.bfloat16)
            torch.testing.assert_close(tensor.float(), far[name], rtol=0, atol=0)
        before = safetensors.torch.load_file(self.whole / "transfer/far.safetensors")
        i = config["layer_types"].index("window_with_far_part")
        # Distillation has trained them on: what is merged is not what transfer ended with.
        merged = before[f"{i}.k_map"].mT.flatten(0, 1) * 16**-0.25
        self.assertGreater((merged - far[f"model.layers.{i}.self_attn.far_k.weight"]).abs().max(), 1e-4)

    def test_same_bytes_after_a_torn_write_in_each_stage(self):
        """Stopped and torn within transfer, within the distillation and that of the control, and before each file that ends a stage."""
        out = self.dir / "torn"
        self.run_all(out, *FAR, "--minutes=1e-9", status=130)
        with open(out / "transfer/losses.csv", "a") as file:
            file.write("2,0.3")
        self.run_all(out, *FAR, "--stop-after=transfer")
        (out / "transfer/far.safetensors").unlink()
        self.tear(out / "transfer/measurements.jsonl", 9)
        self.run_all(out, *FAR, "--minutes=1e-9", status=130)
        self.run_all(out, *FAR, "--stop-after=distillation")
        (out / "control/distillation/state.pt").unlink()
        shutil.rmtree(out / "control/model")
        self.run_all(out, *FAR)
        self.check_same_files(self.whole, out)

    def test_other_settings(self):
        for option, words in (
            ("--far-size=32", "transfer was begun with far|sensitivity was begun with far"),
            ("--far=none", "was begun with far .*affine_square"),
        ):
            with self.subTest(option), contextlib.redirect_stderr(io.StringIO()), self.assertRaisesRegex(ToolError, words):
                command.command(self.options(self.whole, *FAR, option))

    @unittest.skipUnless(PROBE.exists(), "logits-probe is not built here")
    def test_served(self):
        self.check_served(self.whole / "model", ("reference", *instruction_sets()), 400, seed=6)

    def test_forecast(self):
        with contextlib.redirect_stdout(io.StringIO()) as stdout:
            command.command(self.options(self.dir / "forecast", *FAR, "--dry-run"))
        text = stdout.getvalue()
        written = sum(path.stat().st_size for path in self.whole.rglob("*") if path.is_file()) / 1e6
        disk = next(line for line in text.splitlines() if line.strip().startswith("together"))
        # Of 4 layers one is full and has no far part; TensorBoard's files, tokenizers, reports.
        self.assertLess(abs(float(disk[46:].replace(",", "")) - written), 0.6, text)
        for name in ("far parts, their states", "attention transfer", "distillation of the control", "evaluation of the control"):
            self.assertIn(f"  {name}", text)


class LinearKindTest(LinearizeTest):
    """Far parts of elu + 1, of a teacher of the shape of Llama."""

    options_of_kind = ("--far=linear",)
    kind, words, tensors = "linear", "products of elu + 1 of affine maps to 16 numbers, whose", 5

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.whole = cls.dir / "whole"
        cls.run_all(cls(), cls.whole, *FAR, *cls.options_of_kind, "--no-control")

    def test_folder(self):
        config = json.loads((self.whole / "model/config.json").read_text())
        self.assertEqual(config["attention_far_kind"], self.kind)
        tensors = safetensors.torch.load_file(self.whole / "model/model.safetensors")
        layers = config["layer_types"].count("window_with_far_part")
        self.assertEqual(sum(".far_" in name for name in tensors), self.tensors * layers)
        for name, tensor in tensors.items():
            if name.endswith("far_q.scale"):
                self.assertGreater(tensor.min().item(), 0)
        self.assertIn(self.words, (self.whole / "report.md").read_text())

    def test_transfer_learns(self):
        errors = list(json.loads((self.whole / "report.json").read_text())["transfer"].values())
        self.assertLess(sum(one["far"] for one in errors), sum(one["window"] for one in errors))

    def test_killed_and_resumed(self):
        out = self.dir / "torn"
        options = (*FAR, *self.options_of_kind, "--no-control")
        self.run_all(out, *options, "--minutes=1e-9", status=130)
        self.run_all(out, *options)
        self.check_same_files(self.whole, out)

    @unittest.skipUnless(PROBE.exists(), "logits-probe is not built here")
    def test_served(self):
        self.check_served(self.whole / "model", ("reference", *instruction_sets()), 400, seed=6)


class GatedSketchTest(LinearKindTest):
    """Far parts of learned sketches, with a decay gate."""

    options_of_kind = ("--far=learned_sketch", "--far-decay-gate")
    kind, words = "learned_sketch", "squares of products of affine maps of learned sketches to 16 numbers with a decay gate, whose"
    tensors = 4 + 2 + 16


class RefusedTest(LinearizeTest):
    def test_options(self):
        for words, options in (
            ("--far-size: expected a multiple of 16 up to 128, found 24", ["--far-size=24"]),
            ("--far affine_square: expected --window-kind blocks, found sliding", ["--window-kind=sliding"]),
            ("--far affine_square: expected a --window that is a multiple of 64, found 16", ["--window=16"]),
            ("--far-learning-rate: expected a number above 0, found -1.0", ["--far-learning-rate=-1"]),
            ("--far-decay-gate: expected --far, found none", ["--far=none", "--far-decay-gate"]),
            ("--lengths: expected more than the 128 tokens of two blocks, which have no far part; found 128", ["--lengths=128"]),
        ):
            with self.subTest(words), contextlib.redirect_stderr(io.StringIO()), self.assertRaisesRegex(ToolError, words):
                command.command(self.options(self.dir / "refused", *FAR, *options))
        self.assertFalse((self.dir / "refused").exists())


if __name__ == "__main__":
    unittest.main()
