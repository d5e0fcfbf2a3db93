"""tools/convert --hugging-face: the forward pass beside transformers' logits, and what calibration makes of a folder."""

import json
import os
import pathlib
import unittest

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # threads that wait for one another make small products slow on a busy machine

import support

import numpy as np
import tokenizers

from polysketch_tools import calibration, convert, llama_forward, quantize, safetensors
from polysketch_tools.errors import ToolError

FRAMES = support.ROOT / "tests" / "data" / "frames"
# Every architecture and what differs within one. The goldens are the logits of transformers.
CASES = (
    *("llama", "llama_linear", "llama_llama3", "llama_one_kv_head", "llama_own_kv_heads", "llama_tied_biases"),
    *("mistral", "qwen2", "qwen3", "qwen3_biases", "smollm3", "smollm3_interval", "llama_yarn", "qwen3_yarn", "smollm3_yarn"),
)
WIDTH, HIDDEN, HEADS, KV_HEADS, HEAD_SIZE, LAYERS, VOCABULARY = 128, 320, 4, 2, 32, 2, 200
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def logits(config, tensors: dict[str, np.ndarray], tokens: np.ndarray, product) -> np.ndarray:
    x = llama_forward.forward(config, tokens, tensors.get, product)
    return x @ tensors.get("lm_head.weight", tensors["model.embed_tokens.weight"]).T


def exact(tensors: dict[str, np.ndarray]):
    return lambda names, x: x @ np.concatenate([tensors[name] for name in names]).T


def on_load(tensors: dict[str, np.ndarray]):
    """Products as the server computes them with --weights q4: it joins and rounds the matrices that it reads."""

    def product(names, x):
        weights = np.concatenate([tensors[name] for name in names]).T
        form = "Q4" if weights.size >= quantize.LEAST_Q4 else "Q8"
        arrays = quantize.quantize(form, "", weights)
        return calibration.product(x, quantize.dequantize(form, *arrays, len(weights)))

    return product


def read(folder: pathlib.Path) -> dict[str, np.ndarray]:
    tensors = safetensors.read(sorted(folder.glob("*.safetensors")))
    return {name: values.astype(np.float32) for name, values in tensors.items()}


class ForwardTest(unittest.TestCase):
    def test_logits_of_transformers(self):
        for case in CASES:
            with self.subTest(case):
                config = llama_forward.LlamaConfig.read(FRAMES / case / "config.json")
                tensors = read(FRAMES / case)
                golden = safetensors.read([FRAMES / case / "golden.safetensors"])
                expected = golden["logits"]
                tensors = {name: values for name, values in tensors.items() if name not in golden}
                found = logits(config, tensors, golden["tokens"].reshape(1, -1), exact(tensors))
                np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4 * np.abs(expected).max())


class CalibrateTest(support.ToolTest):
    def setUp(self):
        super().setUp()
        self.source = self.dir / "source"
        self.source.mkdir()
        self.fields = {
            "architectures": ["LlamaForCausalLM"],
            "hidden_size": WIDTH,
            "intermediate_size": HIDDEN,
            "num_attention_heads": HEADS,
            "num_key_value_heads": KV_HEADS,
            "num_hidden_layers": LAYERS,
            "head_dim": HEAD_SIZE,
            "max_position_embeddings": 256,
            "rms_norm_eps": 1e-5,
            "vocab_size": VOCABULARY,
        }
        self.write_config(self.fields)
        self.rng = np.random.default_rng(5)
        safetensors.write(self.source / "model.safetensors", self.tensors())
        vocabulary = {token: i for i, token in enumerate(LETTERS)}
        pairs = [a + b for a in LETTERS for b in LETTERS][: VOCABULARY - len(LETTERS) - 1]
        vocabulary |= {token: len(LETTERS) + i for i, token in enumerate(pairs)}
        vocabulary["<unk>"] = VOCABULARY - 1
        tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
        tokenizer.save(str(self.source / "tokenizer.json"))
        (self.source / "LICENSE").write_text("Use it.\n")
        self.words = sorted(vocabulary, key=vocabulary.__getitem__)
        self.text = self.dir / "text"
        # Words of very unequal frequencies, as in a language, so that inputs of a matrix are correlated.
        weights = 1 / np.arange(1, VOCABULARY + 1)
        self.ids = self.rng.choice(VOCABULARY, 4096, p=weights / weights.sum())
        self.text.write_text(" ".join(self.words[i] for i in self.ids[:3072]))

    def write_config(self, fields: dict):
        (self.source / "config.json").write_text(json.dumps(fields))

    def matrix(self, out: int, inputs: int) -> np.ndarray:
        return (self.rng.standard_normal((out, inputs)) / np.sqrt(inputs)).astype(np.float32)

    def tensors(self) -> dict[str, np.ndarray]:
        q, kv = HEADS * HEAD_SIZE, KV_HEADS * HEAD_SIZE
        tensors = {"model.embed_tokens.weight": self.matrix(VOCABULARY, WIDTH)}
        tensors["lm_head.weight"] = self.matrix(VOCABULARY, WIDTH)
        for i in range(LAYERS):
            layer, attention = f"model.layers.{i}.", f"model.layers.{i}.self_attn."
            for name, out in (("q_proj", q), ("k_proj", kv), ("v_proj", kv)):
                tensors[f"{attention}{name}.weight"] = self.matrix(out, WIDTH)
            tensors[attention + "o_proj.weight"] = self.matrix(WIDTH, q)
            for name in ("up_proj", "gate_proj"):
                tensors[f"{layer}mlp.{name}.weight"] = self.matrix(HIDDEN, WIDTH)
            tensors[layer + "mlp.down_proj.weight"] = self.matrix(WIDTH, HIDDEN)
            for name in ("input_layernorm", "post_attention_layernorm"):
                tensors[f"{layer}{name}.weight"] = np.ones(WIDTH, np.float32)
        return tensors | {"model.norm.weight": np.ones(WIDTH, np.float32)}

    def calibrate(self, name: str, *options: str) -> pathlib.Path:
        out = self.dir / name
        command = ["--hugging-face", str(self.source), "--calibration", str(self.text)]
        convert.main([*command, "--out", str(out), *options])
        return out

    def test_less_is_lost_on_other_text(self):
        config = llama_forward.LlamaConfig.read(self.source / "config.json")
        source, calibrated = read(self.source), read(self.calibrate("out"))
        tokens = self.ids[3072:].reshape(-1, 256)  # not of the text
        expected = logits(config, source, tokens, exact(source))
        plain, compensated = (
            np.square(logits(config, tensors, tokens, on_load(tensors)) - expected).mean()
            for tensors in (source, calibrated)
        )
        self.assertLess(compensated, 0.9 * plain)

    def test_the_server_makes_the_same_values_again(self):
        calibrated = read(self.calibrate("out"))
        joined = [
            [f"model.layers.{i}.self_attn.{part}_proj.weight" for part in "qkv"] for i in range(LAYERS)
        ]
        joined += [[f"model.layers.{i}.mlp.down_proj.weight"] for i in range(LAYERS)]
        for names in joined:
            values = np.concatenate([calibrated[name] for name in names]).T
            again = quantize.dequantize("Q4", *quantize.quantize("Q4", "", values), len(values))
            # A group of which no scale gives a 7 or an 8 has none of its own: the rare exception.
            self.assertGreater((again == values).mean(), 0.999, names)

    def test_only_rounded_matrices_change(self):
        out = self.calibrate("out", "--max-shard-bytes", "200000")
        before = safetensors.read([self.source / "model.safetensors"])
        after = safetensors.read(sorted(out.glob("*.safetensors")))
        self.assertGreater(len(list(out.glob("*.safetensors"))), 1)
        self.assertEqual(before.keys(), after.keys())
        for name, values in after.items():
            small = name.endswith("o_proj.weight")  # fewer elements than the server keeps in 4 bits
            if name.endswith("_proj.weight") and not small:
                self.assertEqual((values.dtype, values.shape), (np.float16, before[name].shape), name)
            else:
                np.testing.assert_array_equal(values, before[name])
        for name in ("config.json", "tokenizer.json", "LICENSE"):
            self.assertEqual((out / name).read_bytes(), (self.source / name).read_bytes())
        # Shards are read too, and the same input makes the same bytes.
        again = self.calibrate("again", "--max-shard-bytes", "200000")
        self.assertEqual((out / "SHA256SUMS").read_bytes(), (again / "SHA256SUMS").read_bytes())
        self.source = out
        self.assertEqual(len(read(self.calibrate("of_shards"))), len(after))

    def test_null_is_as_many_kv_heads_as_heads_and_no_window(self):
        mistral = {"architectures": ["MistralForCausalLM"], "max_position_embeddings": 8192}
        for null, kv_heads, longest in (
            ({"num_key_value_heads": None}, HEADS, 4096),
            ({"sliding_window": None}, KV_HEADS, 8192),
        ):
            self.write_config(self.fields | mistral | null)
            config = llama_forward.LlamaConfig.read(self.source / "config.json")
            self.assertEqual((config.kv_heads, config.longest), (kv_heads, longest), null)

    def test_errors(self):
        def check(pattern: str, fields: dict):
            self.write_config(self.fields | fields)
            with self.assertRaisesRegex(ToolError, pattern):
                self.calibrate("out")
            self.assertFalse((self.dir / "out").exists())

        check("architectures: expected one of LlamaForCausalLM, .*; found", {"architectures": ["Gpt"]})
        check("quantization_config: expected a model of F32", {"quantization_config": {}})
        check("config.json: field 'hidden_size': missing", {"hidden_size": None})
        check("rope_scaling: expected default, linear, llama3 or yarn; found 'longrope'", {"rope_scaling": {"type": "longrope"}})
        check("expected the fields of transformers, found damage", {"num_hidden_layers": "two"})
        check("expected positive sizes", {"num_key_value_heads": 3})
        check("no_rope_layers: expected a number for each of 2 layers, found 1",
              {"architectures": ["SmolLM3ForCausalLM"], "no_rope_layers": [1]})
        check("layers.2.input_layernorm.weight: missing", {"num_hidden_layers": 3})
        self.write_config(self.fields)
        self.text.write_text("a b")
        with self.assertRaisesRegex(ToolError, "expected at least 1024 tokens, found 2"):
            self.calibrate("out")
        (self.source / "tokenizer.json").write_text("{}")
        with self.assertRaisesRegex(ToolError, "expected a tokenizer of Hugging Face"):
            self.calibrate("out")


if __name__ == "__main__":
    unittest.main()
