"""Converted checkpoints in the server: the kinds without recordings give the log-probabilities of the equations."""

import json
import os
import pathlib
import re
import subprocess
import unittest

import support
from support import GOLDENS, flax_leaves, random_leaves, transformer_config, write_msgpack

import numpy as np

import reference_model
from polysketch_tools import jax_random, safetensors
from polysketch_tools.convert import convert, draw_sketch, read_transformer_config
from polysketch_tools.model_config import ATTENTION_KINDS

BIN = pathlib.Path(os.environ["POLYSKETCH_BIN_DIR"])
# Longer than the block of a config without grain_size, 256: the state is folded and read.
TOKENS = 300
RECURRENT = ("linear", "performer", "affine_square", "random_sketch_mixed")  # of the kinds below
SEED = 5


def drawn_sketches(config: dict, seed: int):
    if not config["attention"].startswith("random_"):
        return None
    shape = (2, config["emb_dim"] // config["num_heads"], config["sketch_size"])
    key = jax_random.prng_key(seed)
    return [draw_sketch(key, layer, shape) for layer in range(config["num_layers"])]


def score(model: pathlib.Path, tokens: pathlib.Path, *flags: str) -> dict:
    """Returns what `polysketch score` prints, from a server of its own."""
    command = [BIN / "polysketch-server", "--model", model, "--listen=127.0.0.1:0", "--threads=1"]
    command += ["--metrics-listen=", "--http-listen=", "--device=cpu", "--log-level=error"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            address = json.loads(server.stdout.readline())["listen"]
            client = [BIN / "polysketch", "score", "--json", "--server", address]
            result = subprocess.run(
                [*client, "--prompt-tokens", tokens, *flags], check=True, capture_output=True, text=True
            )
        finally:
            server.terminate()
    return json.loads(result.stdout)


def mean_far_masses(masses: list[np.ndarray]) -> dict[tuple[int, int], tuple[int, np.ndarray]]:
    """Queries and means of far masses [n, heads] of each layer, by layer and the first position of a range."""
    starts = [0, 64, 128, 256]
    return {(layer, start): (len(rows), rows.mean(axis=0))
            for layer, all_rows in enumerate(masses)
            for start, rows in zip(starts, np.split(all_rows, starts[1:]), strict=True)}


class ReferenceModelTest(unittest.TestCase):
    """The reference agrees with the recordings of the authors' code."""

    def test_recordings(self):
        for case in ("softmax", "polynomial_p4", "polynomial_p8", "random_sketch"):
            config = transformer_config(case)
            recording = safetensors.read([GOLDENS / case / "golden.safetensors"])
            sketches = drawn_sketches(config, config["sketch_seed"])
            for tokens, logits in zip(recording["tokens"], recording["logits"]):
                with self.subTest(case):
                    computed = reference_model.forward(flax_leaves(case), config, tokens, sketches)
                    tolerance = 2e-4 * np.abs(logits).max()
                    np.testing.assert_allclose(computed, logits, rtol=0, atol=tolerance)


class DocumentationTest(unittest.TestCase):
    def test_kinds(self):
        page = (support.ROOT / "docs/model-format.md").read_text()
        listed = re.search(r"It converts every attention kind:(.*?)\.\s", page, re.DOTALL)[1]
        self.assertEqual(tuple(re.findall(r"`(\w+)`", listed)), ATTENTION_KINDS)


class ConvertedModelTest(support.ToolTest):
    def check(self, config: dict):
        config_path = self.write_json("config.json", config)
        leaves = random_leaves(read_transformer_config(config_path)[0])
        tokens = np.random.default_rng(2).integers(config["vocab_size"], size=TOKENS)
        checkpoint = write_msgpack(self.dir / "checkpoint", leaves)
        convert(checkpoint, config_path, None, self.dir / "model")
        token_file = self.dir / "tokens"
        token_file.write_text(" ".join(map(str, tokens)))
        masses = []
        logits = reference_model.forward(leaves, config, tokens, drawn_sketches(config, SEED), masses)
        has_state = config["attention"] in RECURRENT
        scored = score(self.dir / "model", token_file, *(["--far-mass"] if has_state else []))
        expected = reference_model.next_logprobs(logits, tokens)
        np.testing.assert_allclose(scored["logprobs"], expected, rtol=0, atol=5e-5)
        if not has_state:
            self.assertNotIn("far_mass", scored)
            return
        # The last token gives no log-probability.
        want = mean_far_masses([rows[:-1] for rows in masses])
        got = {(one["layer"], one["first"]): one for one in scored["far_mass"]}
        self.assertEqual(set(got), set(want))
        for key, (queries, shares) in want.items():
            self.assertEqual(got[key]["queries"], queries)
            np.testing.assert_allclose(got[key]["shares"], shares, rtol=0, atol=5e-5)
        self.assertGreater(max(shares.max() for _, shares in want.values()), 0.01)

    def config(self, attention: str, **fields) -> dict:
        config = transformer_config("softmax") | {"attention": attention, "grain_size": None}
        return config | {"power": None, "sketch_size": None} | fields

    def test_softmax_without_grain_size(self):
        self.check(self.config("softmax"))

    def test_linear(self):
        self.check(self.config("linear"))

    def test_performer(self):
        self.check(self.config("performer", num_features=24, grain_size=16))

    def test_polynomial_square(self):
        self.check(self.config("polynomial_square", power=3, alpha=0.5, beta=8.0, head_coefficients=True))

    def test_affine_square(self):
        self.check(self.config("affine_square", alpha=-1.0))

    def test_random_sketch_mixed(self):
        self.check(
            self.config("random_sketch_mixed", grain_size=16, sketch_size=8, sketch_seed=SEED)
        )


if __name__ == "__main__":
    unittest.main()
