"""polysketch-linearize on tiny teachers of the shapes of Llama-3.2-1B and Qwen3-0.6B through every stage, and beyond the teacher's length."""

import contextlib
import io
import json
import unittest

import numpy as np
import torch

import frame_models
import linearize_support
from frames_test import PROBE
from linearize_support import LAYERS, LinearizeTest

from polysketch_tools.errors import ToolError
from polysketch_training.linearize import command
from polysketch_training.linearize.decoder import Decoder, load_tokenizer
from polysketch_training.linearize.scaling import Scaling, scaled_fields
from polysketch_training.linearize.texts import read_texts

CPU = torch.device("cpu")


class ScalingTest(unittest.TestCase):
    def test_fields(self):
        plain = {"max_position_embeddings": 100, "rope_theta": 5.0, "rope_scaling": None}
        self.assertEqual(scaled_fields(plain, None), {})
        self.assertEqual(
            scaled_fields(plain, Scaling("linear", 4.0)),
            {"max_position_embeddings": 400, "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
        )
        llama3 = scaled_fields(plain, Scaling("llama3", 2.5))
        self.assertEqual(llama3["max_position_embeddings"], 250)
        self.assertEqual(llama3["rope_scaling"]["original_max_position_embeddings"], 100)
        yarn = scaled_fields(plain, Scaling("yarn", 4.0))
        self.assertEqual(yarn["rope_scaling"], {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 100})
        again = scaled_fields({"max_position_embeddings": 400} | yarn, Scaling("yarn", 2.0))
        self.assertEqual(again["rope_scaling"], {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 100})
        own = {"max_position_embeddings": 640, "rope_parameters": frame_models.LLAMA3}
        found = scaled_fields(own, Scaling("llama3", 2.0))
        self.assertEqual(found, {"max_position_embeddings": 1280, "rope_parameters": frame_models.LLAMA3 | {"factor": 16.0}})
        with self.assertRaisesRegex(ToolError, '"rope_parameters": --rope-scaling linear: expected no scaling or this one, found .llama3'):
            scaled_fields(own, Scaling("linear", 2.0))


class TeachersTest(LinearizeTest):
    def test_llama(self):
        """RoPE that llama3 scales already, four query heads a kv head, tied; the model reads four times the teacher's length."""
        teacher, out = self.dir / "llama", self.dir / "longer"
        shape = {"num_attention_heads": 8, "num_key_value_heads": 2, "max_position_embeddings": 256}
        linearize_support.write_teacher(teacher, self.text.read_text(), "llama_llama3", torch.bfloat16, **shape)
        self.run_all(out, "--layers=1", "--rope-scaling=llama3:4", "--evaluation-lengths=192,600,1024", teacher=teacher)
        config = json.loads((out / "model/config.json").read_text())
        self.assertEqual(config["max_position_embeddings"], 1024)
        self.assertEqual(config["rope_parameters"], frame_models.LLAMA3 | {"factor": 32.0})
        rows = json.loads((out / "report.json").read_text())["evaluation"]
        found = {(row["model"], row["tokens_of_sample"]): row for row in rows if row["what"] == "text"}
        models = ("teacher", "teacher, scaled RoPE", "windows, not trained", "linearized")
        self.assertEqual(set(found), {(model, length) for model in models for length in (192, 600, 1024)})
        # The divergence is one to the teacher, and beyond its length one to it with scaled RoPE.
        for (model, length), row in found.items():
            has_none = model == "teacher" or (model == "teacher, scaled RoPE" and length > 256)
            self.assertEqual("divergence" not in row, has_none, (model, length))
        self.assertIn("| teacher, scaled RoPE |", (out / "report.md").read_text())
        # The scaled teacher is the teacher's folder with the fields of the model.
        own = json.loads((teacher / "config.json").read_text())
        fields = {name: config[name] for name in ("max_position_embeddings", "rope_parameters")}
        (teacher / "config.json").write_text(json.dumps(own | fields))
        # The first sample of text of evaluation is where the second half of what is held out begins.
        ids = read_texts([self.text], load_tokenizer(teacher), held_out=2 * 1024 + 1).evaluation[:1024]
        states = np.load(out / "evaluation/states/text-1024-0.npy")
        np.testing.assert_allclose(Decoder(teacher, CPU).hidden(ids).numpy(), states, rtol=1e-4, atol=1e-4)
        (teacher / "config.json").write_text(json.dumps(own))
        self.assertGreater(np.abs(Decoder(teacher, CPU).hidden(ids).numpy() - states).max(), 1e-2)
        if PROBE.exists():
            self.check_served(out / "model", ["reference"], 400, seed=7)

    def test_qwen3(self):
        """Norms of q and k, a head that is not width / heads, two query heads a kv head, tied; the layers are chosen."""
        teacher, out = self.dir / "qwen3", self.dir / "chosen"
        linearize_support.write_teacher(teacher, self.text.read_text(), "qwen3", torch.bfloat16, head_dim=16)
        self.run_all(out, "--max-recall-loss=0.05", teacher=teacher)
        report = json.loads((out / "report.json").read_text())
        self.assertEqual(sorted(report["sensitivity"]["ranking"]), list(range(LAYERS)))
        self.assertEqual(list(report["curve"]), ["0", "3", "6"])
        self.assertEqual({row["model"] for row in report["evaluation"]}, {"teacher", "windows, not trained", "linearized"})
        if PROBE.exists():
            self.check_served(out / "model", ["reference"], 300, seed=7)

    def test_yarn(self):
        """The server, whose weights take the scale of attention over, computes what the tool does; q is normed and not."""
        for name in ("qwen3", "llama_own_kv_heads"):
            teacher, out = self.dir / f"yarn-{name}", self.dir / f"longer-{name}"
            linearize_support.write_teacher(teacher, self.text.read_text(), name, torch.bfloat16)
            self.run_all(out, "--layers=1", "--rope-scaling=yarn:2", teacher=teacher)
            config = json.loads((out / "model/config.json").read_text())
            self.assertEqual(config["max_position_embeddings"], 2048)
            models = {row["model"] for row in json.loads((out / "report.json").read_text())["evaluation"]}
            self.assertEqual(models, {"teacher", "teacher, scaled RoPE", "windows, not trained", "linearized"})
            if PROBE.exists():
                self.check_served(out / "model", ["reference"], 300, seed=7)

    def test_refused(self):
        for words, options in (
            ("--evaluation-lengths: expected at most the 1024 positions of the model, found 2048", ["--evaluation-lengths=2048"]),
            ("--evaluation-lengths: expected at most the 2048 positions of the model, found 2049",
             ["--evaluation-lengths=2049", "--rope-scaling=linear:2"]),
            ("--far linear: expected another RoPE than YaRN", ["--far=linear", "--rope-scaling=yarn:2"]),
        ):  # fmt: skip
            with self.subTest(words), contextlib.redirect_stderr(io.StringIO()), self.assertRaisesRegex(ToolError, words):
                command.command(self.options(self.dir / "refused", *options))
        for text in ("longrope:4", "llama3", "llama3:0.5", "linear:nan", "yarn:0"):
            with self.subTest(text), contextlib.redirect_stderr(io.StringIO()) as stderr, self.assertRaises(SystemExit):
                command.command(self.options(self.dir / "refused", f"--rope-scaling={text}"))
            self.assertIn(f"expected KIND:X with one of llama3, linear, yarn and X from 1 to 1e6, found '{text}'", stderr.getvalue())
        self.assertFalse((self.dir / "refused").exists())


if __name__ == "__main__":
    unittest.main()
