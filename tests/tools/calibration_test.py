"""Calibrated q4 folders: the forward pass, the rounding, and what tools/convert makes of them."""

import json
import os
import pathlib
import subprocess
import unittest

import support
from support import DEMO, GOLDENS, random_leaves, transformer_config, write_msgpack

import numpy as np

import reference_model
from polysketch_tools import calibration, compensated_rounding, convert, flax_names, quantize
from polysketch_tools import safetensors
from polysketch_tools.errors import ToolError
from polysketch_tools.forward import forward
from polysketch_tools.model_config import read_model_config, tensor_shapes

BENCH = pathlib.Path(os.environ["POLYSKETCH_BIN_DIR"]) / "polysketch-bench"
TOKENS = 2048  # that the server scores
CASES = sorted(path.name for path in GOLDENS.iterdir())


def logits(config, tensors: dict[str, np.ndarray], tokens: np.ndarray) -> np.ndarray:
    """Of one sequence, by the forward pass of calibration."""
    x = forward(config, tokens[None], lambda name: tensors[name], lambda name, x: x @ tensors[name])
    return x @ tensors["embedding.weight"].T + tensors["softmax_bias"]


def stored_perplexity(folder: pathlib.Path, tokens: np.ndarray, activations) -> float:
    """Of a quantised folder, by the forward pass of calibration. activations(x): the inputs of a product as it reads them."""
    config = read_model_config(folder / "config.json")
    tensors = safetensors.read([folder / "model.safetensors"])
    for name, shape in tensor_shapes(config).items():
        form = quantize.storage("Q4", name, shape)
        if form in ("Q4", "Q8"):
            # The rows of the embedding are the columns of its product.
            stored = tensors[name].T if name == "embedding.weight" else tensors[name]
            rows = shape[1] if name == "embedding.weight" else shape[0]
            tensors[name] = quantize.dequantize(form, stored, tensors[name + ".scale"], rows)

    def product(name, x):
        return activations(x) @ tensors[name]

    def tensor(name):
        return tensors[name].T if name == "embedding.weight" else tensors[name]

    x = product("embedding.weight", forward(config, tokens[None], tensor, product))
    x += tensors["softmax_bias"]
    return float(np.exp(-reference_model.next_logprobs(x.astype(np.float64), tokens).mean()))


class ForwardTest(unittest.TestCase):
    def test_recordings(self):
        for case in CASES:
            config = read_model_config(GOLDENS / case / "config.json")
            tensors = safetensors.read([GOLDENS / case / "model.safetensors"])
            recording = safetensors.read([GOLDENS / case / "golden.safetensors"])
            for tokens, recorded in zip(recording["tokens"], recording["logits"]):
                with self.subTest(case):
                    tolerance = 2e-4 * np.abs(recorded).max()  # as for the server
                    computed = logits(config, tensors, tokens)
                    np.testing.assert_allclose(computed, recorded, rtol=0, atol=tolerance)

    def test_kinds_without_recordings(self):
        fields = {"grain_size": 16, "power": None, "sketch_size": None}
        for kind, own in (
            ("linear", {}),
            ("performer", {"num_features": 24}),
            ("random_sketch_mixed", {"sketch_size": 8, "sketch_seed": 5}),
            ("symmetric_power", {}),
            ("polynomial_square", {"power": 3, "beta": 8.0}),
            ("polynomial_square", {"power": 2, "head_coefficients": True}),
            ("affine_square", {"alpha": 0.5}),
        ):
            with self.subTest(kind):
                self.check(transformer_config("softmax") | fields | {"attention": kind} | own)

    def check(self, fields: dict):
        path = pathlib.Path(self.enterContext(support.tempfile.TemporaryDirectory())) / "config"
        path.write_text(json.dumps(fields))
        config, key = convert.read_transformer_config(path)
        leaves = random_leaves(config)
        drawn = {
            name: convert.draw_sketch(key, flax_names.drawn_layer(name), shape)
            for name, shape in tensor_shapes(config).items()
            if flax_names.drawn_layer(name) is not None
        }
        tensors = {
            name: drawn[name] if name in drawn else leaves[flax_names.flax_path(name)]
            for name in tensor_shapes(config)
        }
        tokens = np.random.default_rng(2).integers(config.vocab_size, size=50)
        expected = reference_model.forward(leaves, fields, tokens, list(drawn.values()) or None)
        np.testing.assert_allclose(
            logits(config, tensors, tokens), expected, rtol=0, atol=2e-4 * np.abs(expected).max()
        )


class RoundingTest(unittest.TestCase):
    def error(self, weights, rounded, moments) -> float:
        off = weights.astype(np.float64) - quantize.dequantize("Q4", *rounded, len(weights))
        return np.einsum("io,ij,jo->", off, moments, off, optimize=True)

    def test_each_matrix_of_the_demo_loses_less(self):
        # Rounded for the inputs of one half of a text, measured on those of the other half.
        config = read_model_config(DEMO / "config.json")
        tensors = safetensors.read([DEMO / "model.safetensors"])
        tokens = calibration.read_sequences(
            config, DEMO / "tokenizer.model", calibration.DEFAULT_TEXT
        )[:12]
        checked = []

        def product(name, x):
            weights = tensors[name]
            if quantize.storage("Q4", name, weights.shape) == "Q4":
                sample, other = np.split(quantize.round_activations(x).astype(np.float64), 2)
                calibrated = compensated_rounding.round_q4(weights, sample.T @ sample)
                plain = quantize.quantize("Q4", name, weights)
                moments = other.T @ other
                self.assertLess(
                    self.error(weights, calibrated, moments),
                    self.error(weights, plain, moments),
                    name,
                )
                checked.append(name)
            return x @ weights

        forward(config, tokens, lambda name: tensors[name], product)
        self.assertEqual(len(checked), 4 * config.num_layers)

    def test_independent_inputs_need_no_compensation(self):
        # Moments of a multiple of the identity: each element is rounded by itself.
        weights = np.random.default_rng(3).standard_normal((70, 5)).astype(np.float32)
        plain = quantize.quantize("Q4", "x", weights)
        rounded = compensated_rounding.round_q4(weights, 3 * np.eye(70))
        np.testing.assert_array_equal(rounded[1], plain[1])
        np.testing.assert_array_equal(rounded[0], plain[0])

    def test_zeros(self):
        # No input is ever set, and a column has no weights.
        weights = np.random.default_rng(4).standard_normal((40, 3)).astype(np.float32)
        weights[:, 1] = 0
        rounded = compensated_rounding.round_q4(weights, np.zeros((40, 40)))
        np.testing.assert_array_equal(quantize.dequantize("Q4", *rounded, 40)[:, 1], 0)
        np.testing.assert_array_equal(rounded[1], quantize.quantize("Q4", "x", weights)[1])


class ConvertTest(support.ToolTest):
    def setUp(self):
        super().setUp()
        tensors = safetensors.read([DEMO / "model.safetensors"])
        leaves = {flax_names.flax_path(name): array for name, array in tensors.items()}
        fields = json.loads((DEMO / "config.json").read_text())
        names = ("attention", "vocab_size", "emb_dim", "num_heads", "num_layers")
        names += ("context_length", "grain_size", "sketch_size")
        config = self.write_json("config.json", {name: fields[name] for name in names})
        self.command = ["--checkpoint", str(write_msgpack(self.dir / "checkpoint", leaves))]
        self.command += ["--config", str(config), "--dtype", "q4"]
        self.tokenizer = ["--tokenizer", str(DEMO / "tokenizer.model")]
        self.text = calibration.DEFAULT_TEXT.read_text()

    def convert(self, name: str, text: str) -> pathlib.Path:
        out = self.dir / name
        convert.main([*self.command, *self.tokenizer, "--calibration", text, "--out", str(out)])
        return out

    def drift(self, folder: pathlib.Path, tokens: pathlib.Path, weights: str = "q4") -> dict:
        command = [BENCH, "--model", folder, "--drift-baseline", DEMO, "--weights", weights]
        command += ["--drift", tokens, "--drift-tokens", str(TOKENS), "--json", "--threads", "1"]
        result = subprocess.run(command, check=True, stdout=subprocess.PIPE)
        return json.loads(result.stdout)["drift"][0]

    def test_less_is_lost_in_the_server(self):
        sample = self.dir / "sample.txt"
        sample.write_text(self.text[:24000])
        config = read_model_config(DEMO / "config.json")
        rest = self.dir / "rest.txt"
        rest.write_text(self.text[-24000:])
        tokens = self.dir / "tokens"
        ids = calibration.read_sequences(config, DEMO / "tokenizer.model", rest)
        ids.ravel().astype("<u2").tofile(tokens)
        calibrated = self.convert("calibrated", str(sample))
        plain = self.convert("plain", "none")
        headers = [safetensors.read_header(f / "model.safetensors") for f in (calibrated, plain)]
        self.assertEqual(*headers)  # the same formats, in the same places
        self.check_stored(calibrated, tokens)
        stored = self.drift(plain, tokens)
        self.assertLess(
            self.drift(calibrated, tokens)["mean_logprob_change"], stored["mean_logprob_change"]
        )
        # Plain rounding is that of the server on load.
        self.assertEqual(self.drift(DEMO, tokens), stored)

    def check_stored(self, folder: pathlib.Path, tokens: pathlib.Path):
        """The server computes with the matrices that are stored, in two formats."""
        ids = np.fromfile(tokens, "<u2")[:TOKENS].astype(np.int64)
        # Widened to float32: as near as two float32 passes are to one another.
        served = self.drift(folder, tokens, "f32")["perplexity"]
        np.testing.assert_allclose(served, stored_perplexity(folder, ids, lambda x: x), rtol=1e-5)
        # As stored. Where float32 rounds differently, the integer of an activation flips, and flips cause more of them in later
        # layers: at most what the rounding of activations does at all, 0.05 of a token's log-probability
        # (docs/measurements/formats.md, q8), of either sign. So three deviations of a mean over all tokens.
        served = self.drift(folder, tokens)["perplexity"]
        expected = stored_perplexity(folder, ids, quantize.round_activations)
        np.testing.assert_allclose(served, expected, rtol=3 * 0.05 / np.sqrt(TOKENS))

    def test_errors(self):
        for line in (self.command, [*self.command, "--calibration", "default"]):
            with self.assertRaises(SystemExit) as caught:
                convert.main([*line, "--out", str(self.dir / "out")])
            self.assertEqual(caught.exception.code, 2)
        self.assertIn("--dtype q4 needs --tokenizer", self.stderr.getvalue())
        with self.assertRaises(SystemExit):
            line = [*self.command[:-1], "q8", *self.tokenizer, "--calibration", "default"]
            convert.main([*line, "--out", str(self.dir / "out")])
        self.assertIn("--calibration needs --dtype q4", self.stderr.getvalue())
        short = self.dir / "short.txt"
        short.write_text("A few words.")
        with self.assertRaisesRegex(ToolError, "short.txt: expected at least 1024 tokens, found"):
            self.convert("out", str(short))
        short.write_bytes(b"\xff\xfe")
        with self.assertRaisesRegex(ToolError, "short.txt: expected UTF-8 text"):
            self.convert("out", str(short))


if __name__ == "__main__":
    unittest.main()
