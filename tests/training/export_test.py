"""Exported models: through tools/convert back with equal tensors, the names of the authors' code, checksums, refusals."""

import json
import subprocess
import unittest
import unittest.mock

import numpy as np
import torch

import support
from train_support import TrainTest

from polysketch_tools import checkpoints, quantize, safetensors
from polysketch_tools.convert import convert
from polysketch_tools.errors import ToolError
from polysketch_tools.model_config import ATTENTION_KINDS
from polysketch_training import export_command
from polysketch_training.export import export_model, load_run
from polysketch_training.flax_checkpoint import draw_sketches
from polysketch_training.server_tensors import load_folder, server_tensors

SKETCH_SEED = 9


def model_of(kind: str, decay_gate: bool = False):
    model = support.small_model(kind, decay_gate=decay_gate, dtype=torch.float32)
    if model.config.is_random:
        for layer, sketch in zip(model.layers, draw_sketches(model.config, SKETCH_SEED)):
            layer.attn.sketch.level0.copy_(torch.from_numpy(np.array(sketch)))
    return model


class RoundTripTest(TrainTest):
    def expect_equal(self, found: dict, expected: dict):
        self.assertEqual(found.keys(), expected.keys())
        for name, array in expected.items():
            np.testing.assert_array_equal(found[name], array, name)

    def test_every_kind_through_convert(self):
        for kind in ATTENTION_KINDS:
            with self.subTest(kind):
                model, folders = model_of(kind), {x: self.dir / f"{kind}-{x}" for x in ("server", "flax", "converted")}
                seed = SKETCH_SEED if model.config.is_random else None
                export_model(model, folders["server"], tokenizer=None)
                export_model(model, folders["flax"], tokenizer=None, form="flax", sketch_seed=seed)
                convert(folders["flax"] / "ckpt.msgpack", folders["flax"] / "config.json", None, folders["converted"])
                for folder in (folders["server"], folders["converted"]):
                    self.expect_equal(safetensors.read([folder / "model.safetensors"]), server_tensors(model))
                configs = [json.loads((folders[x] / "config.json").read_text()) for x in ("server", "converted")]
                self.assertEqual(*configs)

    def test_a_folder_loads_as_it_was_written(self):
        for kind, gate in support.MODELS:
            model, folder = model_of(kind, gate), self.dir / f"{kind}-{gate}"
            export_model(model, folder, tokenizer=None)
            again = load_folder(folder)
            tokens = support.tokens_for(model, 1, 40)
            with torch.no_grad():
                self.assertTrue(torch.equal(again(tokens).logits, model(tokens).logits), folder)

    def test_bf16_is_rounded_to_bf16(self):
        model = model_of("learned_sketch_mixed")
        export_model(model, self.dir / "half", tokenizer=None, dtype="bf16")
        stored = safetensors.read([self.dir / "half/model.safetensors"])
        for name, array in server_tensors(model).items():
            want = torch.from_numpy(array).bfloat16().float().numpy()
            np.testing.assert_array_equal(stored[name].astype(np.float32), want, name)

    def test_gates_are_never_rounded(self):
        model = model_of("linear", decay_gate=True)
        for dtype in ("bf16", "f16", "q8", "q4"):
            export_model(model, self.dir / dtype, tokenizer=None, dtype=dtype)
            stored = safetensors.read([self.dir / dtype / "model.safetensors"])
            gates = {name: array for name, array in server_tensors(model).items() if ".attn.gate." in name}
            self.assertEqual(len(gates), 4)
            for name, array in gates.items():
                np.testing.assert_array_equal(stored[name], array, f"{dtype} {name}")


class AuthorsFilesTest(TrainTest):
    def test_names_and_values_of_their_checkpoints(self):
        cases = sorted(path.parent for path in (support.SHARED / "goldens").glob("*/ckpt.msgpack"))
        if not cases:
            self.skipTest("the recordings are not beside the tree")
        for case in cases:
            with self.subTest(case.name):
                seed = json.loads((case / "config.json").read_text())["sketch_seed"]
                model = load_folder(support.GOLDENS / case.name)
                out = self.dir / case.name
                export_model(model, out, tokenizer=None, form="flax", sketch_seed=seed)
                ours, theirs = (checkpoints.open_checkpoint(folder / "ckpt.msgpack") for folder in (out, case))
                self.assertEqual(ours._shapes, theirs._shapes)
                for path in theirs._shapes:
                    np.testing.assert_array_equal(ours.read(path), theirs.read(path), path)
                fields = json.loads((out / "config.json").read_text())
                recorded = json.loads((case / "config.json").read_text())
                self.assertEqual(fields.keys(), recorded.keys())
                used = {name for name, value in fields.items() if value is not None or name == "sketch_seed"}
                self.assertEqual({n: fields[n] for n in used}, {n: recorded[n] for n in used})


class ExportOfARunTest(TrainTest):
    def test_newest_and_named_checkpoints(self):
        self.train("run", "--steps=4", "--save-every=2")
        run = self.dir / "run"
        export_command.command([str(run), f"--out={self.dir / 'newest'}"])
        export_command.command([str(run / "checkpoints/step-00000002"), f"--out={self.dir / 'named'}"])
        weights = [self.dir / name / "model.safetensors" for name in ("run/model", "newest", "named")]
        self.assertEqual(weights[0].read_bytes(), weights[1].read_bytes())
        self.assertNotEqual(weights[0].read_bytes(), weights[2].read_bytes())
        # It is a model folder: the tokenizer's ids are in config.json, and sha256sum finds every file whole.
        config = json.loads((run / "model/config.json").read_text())
        self.assertEqual((config["add_bos"], config["bos_id"], config["eos_id"]), (True, 1, 2))
        listed = subprocess.run(["sha256sum", "-c", "SHA256SUMS"], cwd=run / "model", capture_output=True, text=True, check=True)
        self.assertEqual(listed.stdout.count(": OK"), 5)

    def test_q4_is_calibrated_unless_told_otherwise(self):
        self.train("run", "--steps=2")
        self.enterContext(unittest.mock.patch.object(quantize, "LEAST_Q4", 0))  # the matrices of this model are small
        text = self.dir / "calibration.txt"
        text.write_text("The harbour was quiet that morning, and the sailors spoke of the storm. " * 200)
        folders = {}
        for calibration in ("none", str(text)):
            folders[calibration] = self.dir / f"q4-{len(folders)}"
            export_command.command([str(self.dir / "run"), f"--out={folders[calibration]}", "--dtype=q4", f"--calibration={calibration}"])
        stored = [safetensors.read([folder / "model.safetensors"]) for folder in folders.values()]
        self.assertEqual(stored[0].keys(), stored[1].keys())
        differing = [name for name in stored[0] if not np.array_equal(stored[0][name], stored[1][name])]
        self.assertTrue(differing)
        self.assertTrue(all(".attn." in name or ".mlp." in name for name in differing), differing)
        with self.assertRaises(SystemExit):
            export_command.command([str(self.dir / "run"), f"--out={self.dir / 'q8'}", "--dtype=q8", "--calibration=none"])

    def test_the_exported_model_is_the_trained_one(self):
        self.train("run", "--steps=3")
        trained = load_run(self.dir / "run")[0]
        exported = load_folder(self.dir / "run/model")
        tokens = support.tokens_for(trained, 2, 50)
        with torch.no_grad():
            self.assertTrue(torch.equal(trained(tokens).logits, exported(tokens).logits))

    def test_a_run_with_a_decay_gate(self):
        """Its folder holds the gate, and starts another run of the same shape."""
        self.train("run", "--steps=3", "--decay-gate")
        config = json.loads((self.dir / "run/model/config.json").read_text())
        self.assertEqual((config["format_version"], config["decay_gate"]), (2, True))
        options = ("--steps=1", "--learning-rate=1e-30", "--decay-gate", f"--tokenizer={self.dir / 'run/tokenizer.model'}")
        self.train("on", *options, f"--init={self.dir / 'run/model'}")
        first, on = (safetensors.read([self.dir / run / "model/model.safetensors"]) for run in ("run", "on"))
        self.assertIn("layers.1.attn.gate.bias", first)
        for name, array in first.items():
            np.testing.assert_allclose(on[name], array, rtol=0, atol=1e-29, err_msg=name)

    def test_random_sketches_of_a_seed_reach_the_authors_format(self):
        config = self.write_config("random.json", attention="random_sketch_mixed", power=4, sketch_kind="gaussian")
        self.train("run", f"--config={config}", f"--sketch-seed={SKETCH_SEED}")
        export_command.command([str(self.dir / "run"), f"--out={self.dir / 'flax'}", "--format=flax"])
        convert(self.dir / "flax/ckpt.msgpack", self.dir / "flax/config.json", None, self.dir / "converted")
        files = [safetensors.read([self.dir / folder / "model.safetensors"]) for folder in ("run/model", "converted")]
        for name, array in files[0].items():
            np.testing.assert_array_equal(files[1][name], array, name)

    def test_init_from_a_folder(self):
        self.train("run", "--steps=3")
        options = ("--steps=1", "--learning-rate=1e-30", f"--tokenizer={self.dir / 'run/tokenizer.model'}")
        self.train("on", *options, f"--init={self.dir / 'run/model'}")
        first, on = (safetensors.read([self.dir / run / "model/model.safetensors"]) for run in ("run", "on"))
        for name, array in first.items():
            np.testing.assert_allclose(on[name], array, rtol=0, atol=1e-29, err_msg=name)


class RefusalTest(TrainTest):
    def test_what_a_format_cannot_hold(self):
        gated = support.small_model("learned_sketch_mixed", decay_gate=True)
        drawn = support.small_model("random_sketch")
        rotary = support.small_model("learned_sketch_mixed", sinusoidal_positions=False)
        for model, form, seed, words in (
            (gated, "flax", None, "decay gate: the authors' code has no gate"),
            (rotary, "flax", None, "without sinusoidal positions: the authors' code adds them"),
            (drawn, "flax", None, "expected sketches that were drawn from a seed of JAX"),
            (drawn, "flax", 3, r"layer 0: expected the sketch of PRNGKey\(3\), found another"),
        ):
            with self.subTest(words), self.assertRaisesRegex(ToolError, words):
                export_model(model, self.dir / "out", tokenizer=None, form=form, sketch_seed=seed)
            self.assertFalse((self.dir / "out").exists())

    def test_no_run(self):
        with self.assertRaisesRegex(ToolError, "expected the --out of polysketch-train with a checkpoint"):
            export_command.command([str(self.dir), f"--out={self.dir / 'out'}"])


if __name__ == "__main__":
    unittest.main()
