"""polysketch-linearize: each stage on a tiny teacher, killed and resumed; its forecast; what it refuses; and what the server computes of
the folder that it writes."""

import contextlib
import io
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import tempfile
import time
import unittest
import xml.etree.ElementTree

import numpy as np
import peft
import safetensors.torch
import torch
import transformers

import frame_models
import linearize_support
import support
from frames_test import PROBE, instruction_sets
from linearize_support import LAYERS, VOCABULARY, LinearizeTest, files_of

from polysketch_tools import convert_gguf
from polysketch_tools.errors import ToolError
from polysketch_training.linearize import command
from polysketch_training.linearize.decoder import Decoder, load_tokenizer
from polysketch_training.linearize.scores import divergence
from polysketch_training.linearize.sensitivity import Sensitivity, curve_points
from polysketch_training.linearize.tasks import FORMS, prompt, training_sequence
from polysketch_training.linearize.windows import Window, attend

CPU = torch.device("cpu")


class AttentionTest(unittest.TestCase):
    """Against every weight of a softmax, masked."""

    def test_windows(self):
        torch.manual_seed(1)
        for window in (
            Window(16, "blocks", 3),
            Window(16, "sliding", 3),
            Window(5, "blocks", 0),
            Window(1, "sliding", 0),
            Window(1, "blocks", 2),
            Window(7, "sliding", 20),  # more sinks than the window has tokens
            Window(100, "blocks", 4),
        ):
            for n, heads, kv_heads in ((1, 2, 2), (15, 4, 2), (64, 3, 1), (77, 6, 2)):
                q = torch.randn(2, heads, n, 8, dtype=torch.float64)
                k, v = torch.randn(2, 2, kv_heads, n, 8, dtype=torch.float64)
                at = torch.arange(n)
                seen = frame_models.visible(at[:, None], at, window.kind, window.size, window.sinks)
                group = heads // kv_heads
                scores = q @ k.repeat_interleave(group, 1).transpose(-1, -2) * 0.3
                weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
                expected = weights @ v.repeat_interleave(group, 1)
                with self.subTest(window=window, n=n):
                    # Sums of at most 77 products of order one in float64.
                    torch.testing.assert_close(attend(q, k, v, 0.3, window), expected, rtol=1e-12, atol=1e-12)

    def test_decoder(self):
        """Each class, with all layers full and with windows, against transformers' own attention under masks."""
        windows = {
            "layer_types": ["window_with_sinks", "full_attention", "window_with_sinks", "window_with_sinks"],
            "attention_window": 12,
            "attention_window_kind": "blocks",
            "attention_sinks": 3,
        }
        for name in ("llama_own_kv_heads", "llama_llama3", "mistral", "qwen2", "qwen3", "smollm3_interval"):
            for fields in ({}, windows):
                with self.subTest(name, windows=bool(fields)), tempfile.TemporaryDirectory() as folder:
                    model = frame_models.random_model(name, num_hidden_layers=4)
                    frame_models.with_sinks(model, fields, {})
                    frame_models.save(model, folder)
                    tokens = frame_models.random_tokens(model, 100)
                    expected = frame_models.logits_of(model, tokens)
                    decoder = Decoder(pathlib.Path(folder), CPU)
                    found = decoder.hidden(tokens) @ decoder.head.T
                    # As in frames_test: some hundred roundings of 2^-24, and angles of float32.
                    self.assertLess((found - expected).abs().max() / expected.abs().max(), 1e-4)


class ScoresTest(LinearizeTest):
    def test_gradient_of_the_divergence(self):
        decoder = Decoder(self.teacher, CPU)
        torch.manual_seed(2)
        student, teacher = torch.randn(2, 300, 32)
        student.requires_grad_()
        p, q = ((states @ decoder.head.T).log_softmax(-1) for states in (teacher, student))
        expected = ((p - q) * p.exp()).sum() / 300
        expected.backward()
        value, gradient = divergence(decoder, student.detach(), teacher)
        self.assertAlmostEqual(value, expected.item(), places=5)
        torch.testing.assert_close(gradient, student.grad, rtol=1e-4, atol=1e-7)

    def test_prompts(self):
        """Every question repeats the line of its fact, whose answer the ids between begin and end spell."""
        tokenizer = load_tokenizer(self.teacher)
        text = np.arange(2, 302, dtype=np.int32)
        for kind in FORMS:
            for length in (160, 256, 1000):
                made = prompt(tokenizer, np.resize(text, 2000), kind, length, 5, [1])
                self.assertEqual(len(made.ids), length)
                self.assertEqual(made.ids[0], 1)
                for begin, end, distance in made.answers:
                    answer = tokenizer.decode(made.ids[begin:end]).strip()
                    self.assertRegex(answer, r"^\d{5}$" if kind == "codes" else "^[A-Za-z]+$")
                    np.testing.assert_array_equal(made.ids[begin - 6 : end], made.ids[begin - distance - 6 : end - distance])
                again = prompt(tokenizer, np.resize(text, 2000), kind, length, 5, [1])
                np.testing.assert_array_equal(made.ids, again.ids)

    def test_training_sequences(self):
        tokenizer, rng = load_tokenizer(self.teacher), np.random.default_rng(3)
        text = np.full(3000, 7, np.int32)
        asked = 0
        for _ in range(60):
            ids = training_sequence(rng, tokenizer, text, 256, 1.0, [1])
            self.assertEqual((len(ids), ids[0]), (256, 1))
            asked += bool((ids[1:] != 7).any())
        self.assertGreater(asked, 15)  # half of them, 30, in the mean: 5 standard deviations
        plain = training_sequence(rng, tokenizer, text, 256, 0.0, [])
        np.testing.assert_array_equal(plain, text[:256])


class SensitivityTest(unittest.TestCase):
    def test_fewest(self):
        curve = {0: {"nats": 9.0}, 1: {"nats": 3.4}, 2: {"nats": 3.6}, 3: {"nats": 3.0}}
        found = Sensitivity({"nats": 3.0}, [], [2, 0, 1], curve)
        self.assertEqual([found.fewest(x) for x in (0.0, 0.5, 0.7, 10)], [3, 1, 1, 0])
        self.assertEqual(found.full_layers(2), [0, 2])

    def test_points(self):
        self.assertEqual(curve_points(1), [0, 1])
        self.assertEqual(curve_points(30), [0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 18, 22, 27, 30])


class RunTest(LinearizeTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.whole = cls.dir / "whole"
        cls.run_all(cls(), cls.whole, "--max-recall-loss=0.02")

    def test_folder(self):
        model = self.whole / "model"
        config, found = (json.loads((folder / "config.json").read_text()) for folder in (self.teacher, model))
        full = json.loads((self.whole / "report.json").read_text())["full"]
        self.assertEqual(
            found,
            config
            | {
                "layer_types": ["full_attention" if i in full else "window_with_sinks" for i in range(LAYERS)],
                "attention_window": 16,
                "attention_window_kind": "blocks",
                "attention_sinks": 3,
            },
        )
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json", "LICENSE"):
            self.assertEqual((self.teacher / name).read_bytes(), (model / name).read_bytes(), name)
        self.assertEqual((self.teacher / "README.md").read_bytes(), (model / "README.teacher.md").read_bytes())
        checked = subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=model, check=False)
        self.assertEqual(checked.returncode, 0)
        with self.assertRaises(Exception):  # it has no such layers, and would compute others
            transformers.AutoConfig.from_pretrained(model)

    def test_weights(self):
        """Merged: what PEFT makes of the teacher and the adapter, in the types of the teacher."""
        before, after = (safetensors.torch.load_file(folder / "model.safetensors") for folder in (self.teacher, self.whole / "model"))
        teacher = transformers.AutoModelForCausalLM.from_pretrained(self.teacher, dtype=torch.float32)
        merged = peft.PeftModel.from_pretrained(teacher, self.whole / "adapter").merge_and_unload().state_dict()
        self.assertEqual(before.keys(), after.keys())
        changed = 0
        for name, weight in before.items():
            if name.endswith(tuple(f".{which}_proj.weight" for which in "qkvo")):
                self.assertGreater((merged[name] - weight).abs().max(), 1e-4)
                torch.testing.assert_close(after[name], merged[name], rtol=1e-6, atol=1e-6)
                changed += 1
            else:
                torch.testing.assert_close(after[name], weight, rtol=0, atol=0)
        self.assertEqual(changed, 4 * LAYERS)
        adapter = safetensors.torch.load_file(self.whole / "adapter/adapter_model.safetensors")
        self.assertEqual({tensor.dtype for tensor in adapter.values()}, {torch.bfloat16})
        self.assertEqual(json.loads((self.whole / "adapter/adapter_config.json").read_text())["base_model_name_or_path"], "teacher")

    def test_report(self):
        report = json.loads((self.whole / "report.json").read_text())
        self.assertEqual(report["far"], "none")
        found = report["sensitivity"]
        self.assertEqual(sorted(found["ranking"]), list(range(LAYERS)))
        self.assertEqual(list(found["curve"]), [str(i) for i in range(LAYERS + 1)])
        self.assertEqual(report["full"], sorted(found["ranking"][: len(report["full"])]))
        lost = {int(k): values["nats"] - found["full"]["nats"] for k, values in found["curve"].items()}
        self.assertEqual(len(report["full"]), min(k for k, x in lost.items() if x <= 0.02))
        self.assertEqual(list(report["curve"]), ["0", "3", "6"])
        # Trained on its own text the student comes closer to the teacher.
        rows = (self.whole / "distillation/losses.csv").read_text().splitlines()
        self.assertEqual(len(rows), 7)
        divergences = {(row["model"], row["tokens_of_sample"]): row["divergence"] for row in report["evaluation"] if "divergence" in row}
        self.assertEqual(len(divergences), 4)
        self.assertTrue(all(0 < value < 10 for value in divergences.values()), divergences)
        text = (self.whole / "report.md").read_text()
        for words in ("## Sensitivity", "## Distillation", "## Evaluation", "Recall ", "windows, not trained"):
            self.assertIn(words, text)
        picture = xml.etree.ElementTree.parse(self.whole / "sensitivity.svg").getroot()
        bars = picture.findall("{http://www.w3.org/2000/svg}rect")
        self.assertEqual(len(bars), 1 + 2 * LAYERS + 2)
        times = (self.whole / "times.csv").read_text()
        for stage in ("sensitivity", "teacher", "distillation", "evaluation"):
            self.assertIn(f"\n{stage},", times)

    def test_measurements(self):
        """Of a layer and of the teacher, computed anew."""
        decoder = Decoder(self.teacher, CPU, Window(16, "blocks", 3))
        decoder.limit_vocabulary(VOCABULARY)
        lines = [json.loads(line) for line in (self.whole / "sensitivity/measurements.jsonl").read_text().splitlines()]
        self.assertEqual(len(lines), 3 * (LAYERS + 1 + LAYERS))
        found = {tuple(line["of"]): line["values"] for line in lines}
        ids = load_tokenizer(self.teacher).encode(self.text.read_text())
        self.assertEqual(len(found), len(lines))
        # The first sample of text begins where the first held-out part does.
        losses = {}
        half = (len(ids) + 19) // 20 + 1
        sample = np.array(ids[-2 * half :][:192])
        logits = {}
        for layers in ((), (2,), (0, 1, 2, 3)):
            decoder.set_windows(layers)
            logits[layers] = (decoder.hidden(sample) @ decoder.head.T)[:-1].double().log_softmax(-1)
            losses[layers] = -logits[layers].gather(1, torch.tensor(sample[1:])[:, None]).mean().item()
        for layers, of in (((), ("full", "text 192 0")), ((2,), ("layer", 2, "text 192 0")), ((0, 1, 2, 3), ("full layers", 0, "text 192 0"))):
            self.assertAlmostEqual(found[of]["loss"], losses[layers], places=4)

    def test_same_bytes_after_kills(self):
        """Killed at random moments, several times, in whatever stage: the files are those of a run that was left alone."""
        out, rng, kills = self.dir / "killed", random.Random(os.environ.get("POLYSKETCH_TEST_SEED", "4")), 0
        while True:
            before = time.monotonic()
            process = self.start(out, "--max-recall-loss=0.02")
            watched = [out / name for name in ("sensitivity/measurements.jsonl", "distillation/states.bin", "distillation/losses.csv",
                                               "evaluation/measurements.jsonl")]  # fmt: skip
            sizes = [path.stat().st_size if path.exists() else 0 for path in watched]
            # Once it writes, for a random time more.
            while process.poll() is None and sizes == [path.stat().st_size if path.exists() else 0 for path in watched]:
                time.sleep(0.002)
                self.assertLess(time.monotonic() - before, 200)
            if kills < 8:
                time.sleep(rng.uniform(0, 0.3))
                if process.poll() is None:
                    process.kill()
                    kills += 1
            stderr = process.communicate(timeout=200)[1]
            if process.returncode == 0:
                break
            self.assertEqual(process.returncode, -signal.SIGKILL, stderr)
        self.assertGreaterEqual(kills, 3)
        self.check_same_files(self.whole, out)

    def test_same_bytes_after_a_torn_write_in_each_stage(self):
        """A kill in the middle of a write leaves the first half of the last record."""
        out = self.dir / "torn"
        self.run_all(out, "--max-recall-loss=0.02", "--stop-after=sensitivity")
        self.tear(out / "sensitivity/measurements.jsonl", 37)
        self.run_all(out, "--max-recall-loss=0.02", "--stop-after=teacher")
        self.tear(out / "distillation/states.bin", 1001)
        self.tear(out / "evaluation/measurements.jsonl", 3)
        (out / "distillation/lengths.json").unlink()
        self.tear(out / "distillation/ids.bin", 10)
        self.run_all(out, "--max-recall-loss=0.02", "--minutes=1e-9", status=130)
        (out / "distillation/state.pt").unlink()  # killed in the first measurement
        self.tear(out / "distillation/measurements.jsonl", 20)
        with open(out / "distillation/losses.csv", "a") as file:
            file.write("2,0.3")
        for _ in range(3):
            self.run_all(out, "--max-recall-loss=0.02", "--minutes=1e-9", status=130)
        self.run_all(out, "--max-recall-loss=0.02", "--stop-after=distillation")
        shutil.rmtree(out / "model")  # killed before it was written
        self.run_all(out, "--max-recall-loss=0.02")
        self.check_same_files(self.whole, out)

    def test_sigterm_leaves_a_state(self):
        out = self.dir / "stopped"
        process = self.start(out, "--layers=1", "--steps=400", "--tokens-per-step=64", "--lengths=64", "--save-every=1000")
        losses = out / "distillation/losses.csv"
        while process.poll() is None and not (losses.exists() and losses.read_bytes().count(b"\n") > 3):
            time.sleep(0.005)
        process.terminate()
        stderr = process.communicate(timeout=100)[1]
        self.assertEqual(process.returncode, 130, stderr)
        self.assertRegex(stderr, r"stopped after step \d+ of 400; the same command continues")
        self.assertTrue((out / "distillation/state.pt").exists())

    def test_other_settings(self):
        for option, words in (
            ("--window=32", "was begun with window .*'size': 16.*, found .*'size': 32"),
            ("--rank=4", "distillation was begun with recipe"),
            ("--layers=0,1,2", "evaluation was begun with full"),
            ("--sample-prompts=1", "was begun with samples"),
        ):
            with self.subTest(option), contextlib.redirect_stderr(io.StringIO()), self.assertRaisesRegex(ToolError, words):
                command.command(self.options(self.whole, "--max-recall-loss=0.02", option))

    @unittest.skipUnless(PROBE.exists(), "logits-probe is not built here")
    def test_served(self):
        """Log-probabilities of the server's model and of the evaluated one."""
        self.check_served(self.whole / "model", ("reference", *instruction_sets()), 400, seed=6)
        decoder, tokens = Decoder(self.whole / "model", CPU), linearize_support.random_tokens(400, seed=6)
        expected = linearize_support.log_probabilities(decoder, tokens)
        # The windows matter: without them the same weights compute something else.
        decoder.set_windows([])
        full = linearize_support.log_probabilities(decoder, tokens)
        self.assertGreater(np.abs(full - expected).max(), 1e-2)


class OtherTeachersTest(LinearizeTest):
    def test_without_training(self):
        out = self.dir / "untrained"
        self.run_all(out, "--layers=none", "--steps=0", "--window-kind=sliding")
        before, after = (folder / "model.safetensors" for folder in (self.teacher, out / "model"))
        tensors = [safetensors.torch.load_file(path) for path in (before, after)]
        for name, weight in tensors[0].items():
            torch.testing.assert_close(weight, tensors[1][name], rtol=0, atol=0)
        config = json.loads((out / "model/config.json").read_text())
        self.assertEqual(config["layer_types"], ["window_with_sinks"] * LAYERS)
        self.assertEqual(config["attention_window_kind"], "sliding")
        rows = json.loads((out / "report.json").read_text())["evaluation"]
        values = {(row["model"], row["tokens_of_sample"], row["what"]): row for row in rows}
        for length in (160, 192):
            for what in ("text", *FORMS):
                untrained, written = (values[model, length, what] for model in ("windows, not trained", "linearized"))
                self.assertEqual(untrained | {"model": ""}, written | {"model": ""})

    def test_gguf(self):
        """Of a GGUF file: what a folder that tools/convert makes of it gives."""
        file, folder = self.dir / "model.gguf", self.dir / "of-gguf"
        linearize_support.write_gguf(file, self.text.read_text())
        with contextlib.redirect_stderr(io.StringIO()):
            convert_gguf.convert(file, folder)
        for teacher, out in ((file, "run-gguf"), (folder, "run-of-gguf")):
            self.run_all(self.dir / out, "--layers=2", "--steps=2", teacher=teacher)
        models = [{k: v for k, v in files_of(self.dir / out / "model").items() if k not in ("README.md", "SHA256SUMS")}
                  for out in ("run-gguf", "run-of-gguf")]  # fmt: skip
        self.assertIn("model.safetensors", models[0])
        self.assertEqual(models[0], models[1])
        self.assertTrue((self.dir / "run-gguf/teacher/config.json").exists())

    def test_other_classes(self):
        """Shapes of Qwen3 and SmolLM3, biases of Qwen2, bfloat16, MLP targets."""
        for name, dtype in (("qwen3", torch.bfloat16), ("qwen2", torch.float32), ("smollm3_interval", torch.float16)):
            with self.subTest(name):
                teacher, out = self.dir / f"of-{name}", self.dir / f"run-{name}"
                linearize_support.write_teacher(teacher, self.text.read_text(), name, dtype)
                self.run_all(out, "--layers=1,3", "--targets=q,o,up,down", "--steps=2", teacher=teacher)
                tensors = safetensors.torch.load_file(out / "model/model.safetensors")
                self.assertEqual({tensor.dtype for tensor in tensors.values()}, {dtype})
                if PROBE.exists():
                    self.check_served(out / "model", ["reference"], 150, seed=7)


class DryRunTest(LinearizeTest):
    def test_forecast(self):
        out = self.dir / "forecast"
        stdout, _ = self.run_all(out, "--dry-run")
        self.assertFalse(out.exists())
        disk = {
            line[:46].strip(): float(line[46:].replace(",", "")) for line in stdout.split("memory, MB")[0].splitlines()[1:]
        }
        for words in ("memory, MB", "activations of a layer", "time, minutes, at ", "sensitivity", "teacher's states"):
            self.assertIn(words, stdout)
        self.run_all(out)
        # In MB with one decimal, and at most 10% more: headers of files, the other texts.
        for name, paths in (
            ("sequences (distillation/ids.bin)", ["distillation/ids.bin"]),
            ("teacher's states (distillation/states.bin)", ["distillation/states.bin"]),
            ("adapter", ["adapter/adapter_model.safetensors"]),
            ("model", ["model/model.safetensors"]),
        ):
            found = sum((out / path).stat().st_size for path in paths) / 1e6
            self.assertLess(abs(disk[name] - found), 0.05 + 0.1 * found, name)
        written = sum(path.stat().st_size for path in out.rglob("*") if path.is_file()) / 1e6
        self.assertLess(abs(disk["together"] - written), 0.5, disk)


class RefusedTest(LinearizeTest):
    def refused(self, words: str, *options, teacher: pathlib.Path | None = None) -> None:
        out = self.dir / "refused"
        shutil.rmtree(out, ignore_errors=True)
        with self.subTest(words), contextlib.redirect_stderr(io.StringIO()), self.assertRaisesRegex((ToolError, OSError), words):
            command.command(self.options(out, *options, teacher=teacher))

    def copy(self, **changes) -> pathlib.Path:
        """The teacher with other fields in config.json; None removes one."""
        folder = self.dir / "copy"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.teacher, folder)
        config = json.loads((folder / "config.json").read_text()) | changes
        (folder / "config.json").write_text(json.dumps({name: value for name, value in config.items() if value is not None}))
        return folder

    def test_teachers(self):
        self.refused("missing: expected a Hugging Face folder or a GGUF file, found nothing", teacher=self.dir / "missing")
        self.refused("expected a Hugging Face folder or a GGUF file, found another file", teacher=self.text)
        self.refused('"architectures": expected one of Llama.*, found \\[.Gemma', teacher=self.copy(architectures=["GemmaForCausalLM"]))
        self.refused('"num_hidden_layers": expected an integer from 1, found None', teacher=self.copy(num_hidden_layers=None))
        self.refused('"num_hidden_layers": expected at most 1024, found 5000', teacher=self.copy(num_hidden_layers=5000))
        self.refused('"quantization_config": expected none', teacher=self.copy(quantization_config={"bits": 4}))
        windows = {"layer_types": ["window_with_sinks"] + ["full_attention"] * 3, "attention_window": 8, "attention_sinks": 1}
        self.refused("expected full attention in every layer, found 'window_with_sinks'", teacher=self.copy(**windows))
        mistral = {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 64}
        self.refused("expected full attention in every layer, found 'sliding_window 64'", teacher=self.copy(**mistral))
        window = {"sliding_window": 1024}  # of all positions, until RoPE makes more
        self.refused("expected full attention in every layer, found 'sliding_window 1024'", "--rope-scaling=linear:2",
                     teacher=self.copy(**mistral | window))
        yarn = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}
        self.refused("found 'sliding_window 1024'", teacher=self.copy(**mistral | window, rope_parameters=yarn))
        self.refused('"attn_factor": expected attention_factor', teacher=self.copy(rope_parameters=yarn | {"attn_factor": 0.9}))
        folder = self.copy()
        (folder / "tokenizer.json").unlink()
        self.refused("expected tokenizer.json or tokenizer.model, found neither", teacher=folder)
        folder = self.copy()
        (folder / "model.safetensors").unlink()
        self.refused("expected model.safetensors or model.safetensors.index.json, found neither", teacher=folder)
        folder = self.copy()
        (folder / "model.safetensors").write_bytes((self.teacher / "model.safetensors").read_bytes()[:5000])
        self.refused("expected a safetensors file, found damage", teacher=folder)
        self.refused("expected the weights of its config.json, found", teacher=self.copy(intermediate_size=99))

    def test_exit_status(self):
        _, stderr = self.run_all(self.dir / "refused", teacher=self.dir / "missing", status=1)
        self.assertRegex(stderr, "(?m)^error: .*missing: expected a Hugging Face folder")

    def test_options(self):
        self.refused("--layers: expected layers 0 to 3 of the teacher, found 4", "--layers=1,4")
        self.refused("--layers: expected auto, none or numbers", "--layers=all")
        self.refused("--lengths: expected divisors of --tokens-per-step 128, found 100", "--lengths=100")
        self.refused("--evaluation-lengths: expected at most the 1024 positions of the model, found 2048", "--evaluation-lengths=2048")
        self.refused("--targets: expected some of q, k.*, found 'x'", "--targets=q,x")
        self.refused("--recall-share: expected a number from 0 to 1, found 1.5", "--recall-share=1.5")
        self.refused("--learning-rate: expected a number above 0, found -1.0", "--learning-rate=-1")
        self.refused("--max-recall-loss: expected a number from 0, found nan", "--max-recall-loss=nan")
        self.refused("expected room for a fact and a question in half of 20 tokens", "--sample-length=20")
        self.refused("--sample-length: expected more than the 192 tokens that a window holds, .*; found 192", "--window=96")
        self.refused("--sample-length: .* 192 tokens that a window holds", "--window=192", "--window-kind=sliding")

    def test_texts(self):
        short = self.dir / "short.txt"
        short.write_text("a few words " * 10)
        self.refused(r"short.txt: expected at least \d+ tokens of text, of which \d+ are held out; found \d+", f"--text={short}")
        self.refused("no such file or folder", f"--text={self.dir / 'none.txt'}")

    def test_diverging(self):
        self.refused("expected a finite loss and gradient, found", "--layers=1", "--learning-rate=1e30")

    def test_far(self):
        process = self.start(self.dir / "refused", "--far=sketches")
        stderr = process.communicate(timeout=100)[1]
        self.assertEqual(process.returncode, 2, stderr)
        self.assertIn("choose from", stderr)


if __name__ == "__main__":
    unittest.main()
