"""The server computes what the torch module computes: log-probabilities and perplexity of exported models."""

import dataclasses
import json
import math
import os
import pathlib
import subprocess
import sys
import unittest

import numpy as np
import torch

import support
from train_support import TrainTest

from polysketch_training import PolysketchModel
from polysketch_training.export import export_model
from polysketch_training.server_tensors import load_folder

BIN = pathlib.Path(os.environ.get("POLYSKETCH_BIN_DIR", support.ROOT / "build/cpu/bin"))
TOKENS = 3000
LONG = 65536 if os.environ.get("POLYSKETCH_TEST_FULL") == "1" else 8192


def served_logprobs(model: pathlib.Path, tokens: list[int], folder: pathlib.Path) -> np.ndarray:
    """Returns log p of each token after the first, by a server of its own."""
    file = folder / "tokens"
    file.write_text(" ".join(map(str, tokens)))
    command = [BIN / "polysketch-server", "--model", model, "--listen=127.0.0.1:0", "--threads=1", "--device=cpu"]
    command += ["--metrics-listen=", "--http-listen=", "--log-level=error"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            address = json.loads(server.stdout.readline())["listen"]
            client = [BIN / "polysketch", "score", "--json", "--server", address, "--prompt-tokens", file]
            result = subprocess.run(client, check=True, capture_output=True, text=True)
        finally:
            server.terminate()
    return np.array(json.loads(result.stdout)["logprobs"])


def torch_logprobs(model, tokens: list[int], chunk: int) -> np.ndarray:
    """The same by the module, in chunks with the state carried, float32."""
    ids, state, found = torch.tensor([tokens]), None, []
    with torch.no_grad():
        for begin in range(0, len(tokens) - 1, chunk):
            part = ids[:, begin : begin + chunk]
            out = model(part, state=state, want_state=True)
            state = out.state
            following = ids[:, begin + 1 : begin + 1 + part.shape[1]]
            logprobs = out.logits[:, : following.shape[1]].double().log_softmax(-1)
            found.append(logprobs.gather(-1, following[..., None])[0, :, 0])
    return torch.cat(found)[: len(tokens) - 1].numpy()


@unittest.skipUnless((BIN / "polysketch-server").exists(), "polysketch-server is not built here")
class ServedModelTest(TrainTest):
    def expect_equal(self, ours: np.ndarray, served: np.ndarray, places: int = 5):
        self.assertEqual(ours.shape, served.shape)
        self.assertAlmostEqual(-ours.mean(), -served.mean(), delta=10.0**-places)  # nats: the relative error of a perplexity

    def test_trained_model(self):
        """A model that was trained here, its text tokenized by the server's tokenizer: 3,000 tokens, about 190 blocks."""
        self.train("run", "--steps=30", "--sequences=streamed")
        tokens = np.fromfile(self.dir / "run/tokens/tokens.bin", np.uint16)[:TOKENS].tolist()
        ours = torch_logprobs(load_folder(self.dir / "run/model"), tokens, 500)
        served = served_logprobs(self.dir / "run/model", tokens, self.dir)
        self.expect_equal(ours, served)
        # Logits of order 10 in float32 after sums of up to 2 * 32 * 8 terms in another order.
        np.testing.assert_allclose(ours, served, rtol=0, atol=2**-24 * 512 * 10)
        self.assertLess(-served.mean(), math.log(400))

    def test_every_kind(self):
        models = [(kind, gate, True) for kind, gate in support.MODELS]
        for kind, gate, sinusoids in [*models, ("learned_sketch_mixed", True, False), ("softmax", False, False)]:
            with self.subTest(kind=kind, gate=gate, sinusoids=sinusoids):
                model = support.small_model(kind, decay_gate=gate, sinusoidal_positions=sinusoids, dtype=torch.float32)
                folder = self.dir / f"{kind}-{gate}-{sinusoids}"
                export_model(model, folder, tokenizer=None)
                tokens = support.tokens_for(model, 1, 300)[0].tolist()
                ours, served = torch_logprobs(model.double(), tokens, 70), served_logprobs(folder, tokens, self.dir)
                self.expect_equal(ours, served)
                # Float32 logits of order 6 after some hundred roundings; the module's are in float64.
                np.testing.assert_allclose(ours, served, rtol=0, atol=1e-5)

    def test_long_text(self):
        """Perplexities of 65,536 tokens (8,192 without POLYSKETCH_TEST_FULL=1) of novels that no model has seen: of
        models/novels, of models/demo, of it with a decay gate, and of the model that POLYSKETCH_SERVED_MODEL names."""
        text = support.SHARED / "data/eval.bin"
        if not text.exists():
            self.skipTest(f"no {text}")
        tokens = np.fromfile(text, np.uint16)[:LONG].tolist()
        gated = PolysketchModel(dataclasses.replace(load_folder(support.DEMO).config, decay_gate=True))
        gated.load_state_dict(load_folder(support.DEMO).state_dict(), strict=False)
        torch.manual_seed(3)
        for layer in gated.layers:
            torch.nn.init.normal_(layer.attn.gate.weight, std=0.02)
        export_model(gated, self.dir / "gated", tokenizer=None)
        models = [support.NOVELS, support.DEMO, self.dir / "gated"]
        if "POLYSKETCH_SERVED_MODEL" in os.environ:
            models.append(pathlib.Path(os.environ["POLYSKETCH_SERVED_MODEL"]))
        for folder in models:
            with self.subTest(folder):
                ours = torch_logprobs(load_folder(folder), tokens, 4096)
                served = served_logprobs(folder, tokens, self.dir)
                found, expected = math.exp(-served.mean()), math.exp(-ours.mean())
                print(f"{folder}: perplexity {found:.6f}, torch {expected:.6f}", file=sys.__stderr__)
                self.assertAlmostEqual(found / expected, 1, delta=1e-5)

    def test_demo(self):
        tokens = np.random.default_rng(1).integers(3, 4096, 2000).tolist()
        ours = torch_logprobs(load_folder(support.DEMO), tokens, 512)
        self.expect_equal(ours, served_logprobs(support.DEMO, tokens, self.dir))


if __name__ == "__main__":
    unittest.main()
