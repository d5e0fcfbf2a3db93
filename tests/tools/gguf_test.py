"""tools/convert --gguf: the block formats beside PyPI's gguf, models that its writer has made, and damaged files."""

import io
import itertools
import json
import pathlib
import random
import re
import unittest
import unittest.mock

import support

import gguf
import numpy as np
import sentencepiece
import tokenizers

from polysketch_tools import gguf_blocks, safetensors
from polysketch_tools.convert_gguf import convert
from polysketch_tools.errors import ToolError, run
from polysketch_tools.gguf import Gguf
from polysketch_tools.sentencepiece_model import parse, serialize

WIDTH, HEADS, KV_HEADS, HEAD_SIZE, MLP, LAYERS = 32, 4, 2, 16, 64, 5
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
SPECIAL = ["<tool>"]


def byte_characters() -> list[str]:
    return sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())


def vocabulary() -> tuple[list[str], list[str]]:
    """Tokens and merges."""
    merges = ["h e", "l l", "he ll", "hell o", "Ġ hello", "1 2", "Ċ Ċ", "Ġ Ġ"]
    return CONTROL + SPECIAL + byte_characters() + [merge.replace(" ", "") for merge in merges], merges


def trained(lines: list[str], **options) -> bytes:
    """A SentencePiece model as Llama 2 has it: BPE with byte fallback, of some hundred pieces."""
    model = io.BytesIO()
    defaults = {"vocab_size": 900, "num_threads": 1, "minloglevel": 2, "remove_extra_whitespaces": False}
    kind = {"model_type": "bpe", "byte_fallback": True, "normalization_rule_name": "identity", "split_digits": True}
    options = defaults | kind | {"control_symbols": ["<|im_start|>", "<|im_end|>"]} | options
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=model, **options)
    return model.getvalue()


def lines_of_the_tree() -> list[str]:
    """Lines of documents and sources."""
    files = itertools.chain(*(sorted(support.ROOT.glob(glob)) for glob in ("*.md", "docs/*.md", "tools/**/*.py")))
    control = re.compile(r"<s>|</s>|<unk>|<\|im_(start|end)\|>")  # which tokenizer.json finds in a text, and SentencePiece does not
    return [line for file in files for line in file.read_text().splitlines() if not control.search(line)]


# What a line of prose does not hold.
HARD = (
    *("", " ", "  ", " a", "a ", "  a  b   c ", "\n", "\n\n", "a\tb", "\r\n", "\u2581", "a\u2581b", "<0x0A>", "<0x41>b", "\0", "\ufeff"),
    *("caf\u00e9", "\u65e5\u672c\u8a9e", "\u0391\u03b8\u03ae\u03bd\u03b1", "\U0001f600\U0001f468\u200d\U0001f469", "\U0010ffff", "12345 6.78"),
    *("aaaaaaaaaaaaaaaaaaaaaaa", "-" * 79, " " * 61, "x" * 300, "ab" * 70),
)


def permuted(weights: np.ndarray, heads: int) -> np.ndarray:
    """As LlamaModel.permute of llama.cpp's converter."""
    return (
        weights.reshape(heads, 2, weights.shape[0] // heads // 2, *weights.shape[1:])
        .swapaxes(1, 2)
        .reshape(weights.shape)
    )


class Blocks(unittest.TestCase):
    def test_the_bits_of_gguf(self):
        rng = np.random.default_rng(1)
        for kind, form in gguf_blocks.FORMS.items():
            theirs = gguf.GGMLQuantizationType(kind)
            self.assertEqual(theirs.name, form.name)
            self.assertEqual(gguf.GGML_QUANT_SIZES[theirs], (form.values, form.bytes))
            blocks = rng.integers(0, 256, (2000, form.bytes), np.uint8)  # infinities and NaN too
            with np.errstate(all="ignore"):
                expected = gguf.quants.dequantize(blocks, theirs).astype(np.float32).reshape(2000, -1)
                found = form.dequantize(blocks)
            np.testing.assert_array_equal(np.isnan(found), np.isnan(expected), err_msg=form.name)
            number = ~np.isnan(expected)
            np.testing.assert_array_equal(
                found[number].view(np.uint32), expected[number].view(np.uint32), err_msg=form.name
            )


def number(writer: gguf.GGUFWriter, field: str, value: float) -> None:
    kind = gguf.GGUFValueType.FLOAT64 if isinstance(value, float) else gguf.GGUFValueType.UINT32
    writer.kv_data[0]["llama." + field] = gguf.gguf_writer.GGUFValue(value, kind)


def unused(writer: gguf.GGUFWriter, name: str) -> None:
    """Token 9 is unused, and that which `name` says."""
    writer.kv_data[0]["tokenizer.ggml.token_type"].value[9] = 5
    writer.kv_data[0][f"tokenizer.ggml.{name}_token_id"] = gguf.gguf_writer.GGUFValue(9, gguf.GGUFValueType.UINT32)


def add_biases(writer: gguf.GGUFWriter, outputs: bool = True) -> None:
    rows = {"q": HEADS * HEAD_SIZE, "k": KV_HEADS * HEAD_SIZE, "v": KV_HEADS * HEAD_SIZE} | ({"output": WIDTH} if outputs else {})
    for i in range(LAYERS):
        for name, size in rows.items():
            writer.add_tensor(f"blk.{i}.attn_{name}.bias", np.ones(size, np.float32))


class Conversion(support.ToolTest):
    def setUp(self):
        super().setUp()
        self.rng = np.random.default_rng(7)

    def tensors(self, arch: str, vocab: int) -> dict[str, tuple[str, np.ndarray]]:
        """Random values by Hugging Face's names, each with GGUF's."""
        q, kv = HEADS * HEAD_SIZE, KV_HEADS * HEAD_SIZE
        shapes = {"model.embed_tokens.weight": ("token_embd.weight", (vocab, WIDTH)), "model.norm.weight": ("output_norm.weight", (WIDTH,))}
        if arch != "llama":
            shapes["lm_head.weight"] = ("output.weight", (vocab, WIDTH))
        for i in range(LAYERS):
            per_layer = {
                "input_layernorm.weight": ("attn_norm.weight", (WIDTH,)),
                "post_attention_layernorm.weight": ("ffn_norm.weight", (WIDTH,)),
                "self_attn.q_proj.weight": ("attn_q.weight", (q, WIDTH)),
                "self_attn.k_proj.weight": ("attn_k.weight", (kv, WIDTH)),
                "self_attn.v_proj.weight": ("attn_v.weight", (kv, WIDTH)),
                "self_attn.o_proj.weight": ("attn_output.weight", (WIDTH, q)),
                "mlp.gate_proj.weight": ("ffn_gate.weight", (MLP, WIDTH)),
                "mlp.up_proj.weight": ("ffn_up.weight", (MLP, WIDTH)),
                "mlp.down_proj.weight": ("ffn_down.weight", (WIDTH, MLP)),
            }
            if arch == "qwen2":
                for name, rows in (("q", q), ("k", kv), ("v", kv)):
                    per_layer[f"self_attn.{name}_proj.bias"] = (f"attn_{name}.bias", (rows,))
            if arch == "qwen3":
                for name in "qk":
                    per_layer[f"self_attn.{name}_norm.weight"] = (f"attn_{name}_norm.weight", (HEAD_SIZE,))
            shapes |= {f"model.layers.{i}.{ours}": (f"blk.{i}.{theirs}", shape) for ours, (theirs, shape) in per_layer.items()}
        return {ours: (theirs, self.rng.normal(size=shape).astype(np.float32)) for ours, (theirs, shape) in shapes.items()}

    def write(self, arch="llama", pre="smollm", name="model.gguf", change=None, drop=(), pieces=None, padding=0) -> pathlib.Path:
        """change: sees the writer before the end. pieces: of a SentencePiece model, in the place of byte-level BPE. padding: rows
        of the embedding after those of the tokens. Keeps the values in self.values."""
        tokens, merges = vocabulary()
        self.values = self.tensors(arch, len(pieces or tokens) + padding)
        path = self.dir / name
        writer = gguf.GGUFWriter(path, arch)
        writer.add_block_count(LAYERS)
        writer.add_context_length(256)
        writer.add_embedding_length(WIDTH)
        writer.add_feed_forward_length(MLP)
        writer.add_head_count(HEADS)
        writer.add_head_count_kv(KV_HEADS)
        writer.add_key_length(HEAD_SIZE)
        writer.add_value_length(HEAD_SIZE)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_rope_freq_base(100000.0)
        if pieces is None:
            writer.add_tokenizer_model("gpt2")
            writer.add_tokenizer_pre(pre)
            writer.add_token_list(tokens)
            writer.add_token_types([3] * len(CONTROL) + [4] * len(SPECIAL) + [1] * (len(tokens) - 4))
            writer.add_token_merges(merges)
            writer.add_bos_token_id(1)
            writer.add_eos_token_id(2)
            writer.add_add_bos_token(pre == "llama-bpe")
        else:  # as llama.cpp's converter
            writer.add_tokenizer_model("llama")
            writer.add_tokenizer_pre("default")
            writer.add_token_list([piece.text for piece in pieces])
            writer.add_token_scores([piece.score for piece in pieces])
            writer.add_token_types([int(piece.type) for piece in pieces])
        writer.add_chat_template("{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}")
        for ours, (theirs, values) in self.values.items():
            if ours in drop:
                continue
            if arch in ("llama", "smollm3", "granite") and (".q_proj." in ours or ".k_proj." in ours):
                values = permuted(values, HEADS if ".q_proj." in ours else KV_HEADS)
            writer.add_tensor(theirs, values)
        if change:
            change(writer)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    def made(self, path: pathlib.Path, out="out", **options):
        convert(path, self.dir / out, **options)
        return self.dir / out

    def test_architectures(self):
        classes = {
            "llama": "LlamaForCausalLM",
            "qwen2": "Qwen2ForCausalLM",
            "qwen3": "Qwen3ForCausalLM",
            "smollm3": "SmolLM3ForCausalLM",
            "granite": "GraniteForCausalLM",
        }
        for arch, name in classes.items():
            with self.subTest(arch):
                folder = self.made(self.write(arch), arch)
                config = json.loads((folder / "config.json").read_text())
                self.assertEqual(config["architectures"], [name])
                self.assertEqual(config["rms_norm_eps"], 1e-5)
                self.assertEqual(config["rope_theta"], 1e5)
                self.assertEqual(config["tie_word_embeddings"], arch == "llama")
                self.assertEqual(config["attention_bias"], arch == "qwen2")
                self.assertEqual((config["head_dim"], config["num_key_value_heads"]), (HEAD_SIZE, KV_HEADS))
                self.assertEqual(config.get("no_rope_layers"), [1, 1, 1, 0, 1] if arch == "smollm3" else None)
                made = safetensors.read([folder / "model.safetensors"])
                self.assertEqual(made.keys(), self.values.keys())
                for ours, (_, values) in self.values.items():
                    np.testing.assert_array_equal(made[ours], values, err_msg=ours)

    def test_factors_of_granite(self):
        def factors(writer):
            writer.add_attention_scale(0.015625)
            writer.add_embedding_scale(12.0)
            writer.add_residual_scale(0.22)
            writer.add_logit_scale(8.0)

        names = ("attention_multiplier", "embedding_multiplier", "residual_multiplier", "logits_scaling")
        for change, expected in ((factors, [0.015625, 12.0, 0.22, 8.0]), (None, [float(str(np.float32(HEAD_SIZE**-0.5))), 1.0, 1.0, 1.0])):
            folder = self.made(self.write("granite", pre="refact", change=change), f"out{change is None}")
            config = json.loads((folder / "config.json").read_text())
            self.assertEqual([config[name] for name in names], expected)

    def test_the_same_bytes_twice(self):
        path = self.write()
        one, two = self.made(path, "one"), self.made(path, "two")
        self.assertEqual((one / "SHA256SUMS").read_bytes(), (two / "SHA256SUMS").read_bytes())
        for file in one.iterdir():
            self.assertEqual(file.read_bytes(), (two / file.name).read_bytes(), file.name)

    def test_dtypes_and_shards(self):
        path = self.write()
        sharded = self.made(path, "sharded", shard_bytes=20_000)
        index = json.loads((sharded / "model.safetensors.index.json").read_text())
        self.assertEqual(index["weight_map"].keys(), self.values.keys())
        for dtype, torch in (("f16", "float16"), ("bf16", "bfloat16")):
            folder = self.made(path, dtype, dtype=dtype)
            self.assertEqual(json.loads((folder / "config.json").read_text())["torch_dtype"], torch)
            made = safetensors.read([folder / "model.safetensors"])
            for ours, (_, values) in self.values.items():
                np.testing.assert_array_equal(made[ours], values.astype(safetensors.DTYPES[dtype.upper()]))

    def test_blocks_become_float32(self):
        quantized = {}
        path = self.dir / "model.gguf"
        original = gguf.GGUFWriter.add_tensor

        def add(writer, name, values):
            kind = gguf.GGMLQuantizationType.Q8_0 if name == "token_embd.weight" else gguf.GGMLQuantizationType.Q4_1
            if values.ndim == 2 and name.startswith(("token_embd", "blk.")) and "attn_" not in name:
                packed = gguf.quants.quantize(values, kind)
                quantized[name] = gguf.quants.dequantize(packed, kind)
                original(writer, name, packed, raw_dtype=kind)
            else:
                original(writer, name, values)

        with unittest.mock.patch.object(gguf.GGUFWriter, "add_tensor", add):
            self.write()
        made = safetensors.read([self.made(path) / "model.safetensors"])
        self.assertEqual(len(quantized), 1 + 3 * LAYERS)
        for ours, (theirs, _) in self.values.items():
            if theirs in quantized:
                np.testing.assert_array_equal(made[ours].view(np.uint32), quantized[theirs].view(np.uint32))

    def test_tokenizers(self):
        texts = {
            "smollm": {"\n\n1": ["ĊĊ", "1"], " hello12": ["Ġhello", "1", "2"]},
            "gpt-2": {"\n\n1": ["Ċ", "Ċ", "1"], " hello12": ["Ġhello", "12"]},
            "llama-bpe": {"\n\n1": ["ĊĊ", "1"], "12": ["12"]},
            "qwen2": {"12": ["1", "2"], "e\u0301": ["Ã", "©"]},
            "default": {" hello12": ["Ġhello", "12"]},
        }
        for pre, expected in texts.items():
            with self.subTest(pre):
                folder = self.made(self.write(pre=pre), pre)
                tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
                for text, tokens in expected.items():
                    self.assertEqual(tokenizer.encode(text, add_special_tokens=False).tokens, tokens, text)
                    normal = tokenizer.normalizer.normalize_str(text) if tokenizer.normalizer else text
                    self.assertEqual(tokenizer.decode(tokenizer.encode(text).ids), normal)
                begun = tokenizer.encode("hello").tokens
                self.assertEqual(begun, ["<|im_start|>", "hello"] if pre == "llama-bpe" else ["hello"])
                added = tokenizer.get_added_tokens_decoder()
                self.assertEqual([added[i].special for i in range(4)], [True, True, True, False])
                config = json.loads((folder / "tokenizer_config.json").read_text())
                self.assertEqual((config["bos_token"], config["eos_token"]), ("<|im_start|>", "<|im_end|>"))
                ends = json.loads((folder / "generation_config.json").read_text())
                self.assertEqual(ends, {"bos_token_id": 1, "eos_token_id": 2})
                self.assertIn("<|im_end|>", (folder / "chat_template.jinja").read_text())

    def test_sentencepiece_tokenizers(self):
        lines = lines_of_the_tree()
        variants = {
            "llama": ({}, lambda writer: (writer.add_bos_token_id(1), writer.add_eos_token_id(2), writer.add_unk_token_id(0))),
            "ids by default": ({}, None),
            "no prefix": ({"add_dummy_prefix": False}, lambda writer: writer.add_add_space_prefix(False)),
            "symbols": ({"user_defined_symbols": ["~", "<tool>"]}, lambda writer: writer.add_add_bos_token(False)),
        }
        for name, (options, change) in variants.items():
            with self.subTest(name):
                data = trained(lines[:1500], **options)
                model, library = parse(data), sentencepiece.SentencePieceProcessor(model_proto=data)
                self.assertEqual(parse(serialize(model)), model)
                folder = self.made(self.write(pieces=model.pieces, change=change), name)
                tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
                between = [text for text in HARD if not text.startswith("<0x")]  # docs/model-format.md: the spelling of a byte
                texts = [*lines[::3], *HARD, *(f"{a}<tool>{b}~" for a, b in zip(between, reversed(between)))]
                for text, expected in zip(texts, library.encode(texts), strict=True):
                    found = tokenizer.encode(text, add_special_tokens=False)
                    self.assertEqual(found.ids, expected, repr(text))
                    self.assertEqual(tokenizer.decode(found.ids), library.decode(expected), repr(text))
                begins = name != "symbols"
                self.assertEqual(tokenizer.encode("a").tokens[0] == "<s>", begins)
                self.assertEqual(tokenizer.encode("<|im_end|>", add_special_tokens=False).ids, [library.piece_to_id("<|im_end|>")])
                config = json.loads((folder / "tokenizer_config.json").read_text())
                self.assertEqual((config["bos_token"], config["eos_token"], config["unk_token"]), ("<s>", "</s>", "<unk>"))
                self.assertEqual(config["add_bos_token"], begins)
                ends = json.loads((folder / "generation_config.json").read_text())
                self.assertEqual(ends, {"bos_token_id": 1, "eos_token_id": 2})

    def test_unused_tokens_at_the_end_are_padding(self):
        model = parse(trained(lines_of_the_tree()[:1500]))
        pads = [type(model.pieces[0])(f"[PAD{i}]", -1000.0, 5) for i in range(3)]
        folder = self.made(self.write(pieces=model.pieces + pads, padding=2))
        vocab = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
        self.assertEqual(len(vocab), len(model.pieces))
        self.assertEqual(json.loads((folder / "config.json").read_text())["vocab_size"], len(model.pieces) + 5)

    def test_sentencepiece_tokenizers_that_are_not_converted(self):
        model = parse(trained(lines_of_the_tree()[:1500]))
        piece, last = type(model.pieces[0]), model.pieces[-1]
        normal = next(i for i, p in enumerate(model.pieces) if p.type == 1 and len(p.text) > 1)

        def changed(place: int, **fields) -> list:
            pieces = list(model.pieces)
            pieces[place] = piece(**(vars(pieces[place]) | fields))
            return pieces

        cases = {
            "field tokenizer.ggml.add_eos_token: not supported": dict(change=lambda writer: writer.add_add_eos_token(True)),
            "unknown_token_id: expected a token of type 2, found 5": dict(change=lambda writer: writer.add_unk_token_id(5)),
            "bos_token_id: expected a token of type 3, found 9": dict(change=lambda writer: writer.add_bos_token_id(9)),
            "expected no byte token, or <0x00> to <0xFF>": dict(pieces=changed(20, type=1, score=-9e3)),
            "expected one unknown token": dict(pieces=changed(normal, type=2)),
            "field tokenizer.ggml.scores: expected finite numbers": dict(pieces=changed(normal, score=float("nan"))),
            "field tokenizer.ggml.scores: expected others for": dict(pieces=changed(normal, score=model.pieces[normal + 1].score)),
            "expected no unused pieces": dict(pieces=changed(normal, type=5)),
            "expected each character to be a piece": dict(pieces=[*model.pieces, piece("\u4e00\u4e01", last.score - 1)]),
        }
        for words, options in cases.items():
            with self.subTest(words), self.assertRaisesRegex(ToolError, words):
                self.made(self.write(**({"pieces": model.pieces} | options)))
            self.assertFalse((self.dir / "out").exists())

        def without_scores(writer):
            del writer.kv_data[0]["tokenizer.ggml.scores"]

        def double_scores(writer):
            scores = [1e39 if i == normal else piece.score for i, piece in enumerate(model.pieces)]
            kinds = gguf.GGUFValueType
            writer.kv_data[0]["tokenizer.ggml.scores"] = gguf.gguf_writer.GGUFValue(scores, kinds.ARRAY, kinds.FLOAT64)

        with self.assertRaisesRegex(ToolError, "field tokenizer.ggml.scores: expected finite numbers of float32"):
            self.made(self.write(pieces=model.pieces, change=double_scores))
        with self.assertRaisesRegex(ToolError, "field tokenizer.ggml.scores: missing"):
            self.made(self.write(pieces=model.pieces, change=without_scores))
        with self.assertRaisesRegex(ToolError, "tokenizer.ggml.model: expected one of gpt2, llama, found 't5'"):
            self.made(self.write(change=lambda writer: writer.kv_data[0].update({"tokenizer.ggml.model": gguf.gguf_writer.GGUFValue("t5", gguf.GGUFValueType.STRING)})))

    def test_scaled_rope(self):
        folder = self.made(self.write(change=lambda writer: (writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR), writer.add_rope_scaling_factor(4.0))), "linear")
        self.assertEqual(json.loads((folder / "config.json").read_text())["rope_scaling"], {"factor": 4.0, "rope_type": "linear"})
        for name, trained in (("yarn", 4), ("yarn_of_length", None)):
            def yarn(writer, trained=trained):
                writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
                writer.add_rope_scaling_factor(4.0)
                writer.add_rope_scaling_yarn_beta_fast(32.0)
                if trained:
                    writer.add_rope_scaling_orig_ctx_len(trained)

            config = json.loads((self.made(self.write(change=yarn), name) / "config.json").read_text())
            trained = trained or config["max_position_embeddings"]
            self.assertEqual(config["rope_scaling"], {"factor": 4.0, "rope_type": "yarn", "original_max_position_embeddings": trained})

        def llama3(writer, factor=32.0):
            # As LlamaModel.generate_extra_tensors of llama.cpp's converter.
            divisors = []
            for frequency in 1.0 / 100000.0 ** (np.arange(0, HEAD_SIZE, 2, dtype=np.float32) / HEAD_SIZE):
                length = 2 * np.pi / frequency
                if length < 8192 / 4:
                    divisors.append(1)
                elif length > 8192:
                    divisors.append(factor)
                else:
                    smooth = (8192 / length - 1) / (4 - 1)
                    divisors.append(1 / ((1 - smooth) / factor + smooth))
            writer.add_tensor("rope_freqs.weight", np.array(divisors, np.float32))

        folder = self.made(self.write(change=llama3), "llama3")
        scaling = json.loads((folder / "config.json").read_text())["rope_scaling"]
        self.assertEqual((scaling["rope_type"], scaling["factor"], scaling["original_max_position_embeddings"]), ("llama3", 32.0, 8192))
        with self.assertRaisesRegex(ToolError, "expected the divisors of Llama 3.1 or 3.2"):
            self.made(self.write(change=lambda writer: llama3(writer, 5.0)), "other")

    def test_biases(self):
        folder = self.made(self.write(change=add_biases))
        self.assertTrue(json.loads((folder / "config.json").read_text())["attention_bias"])
        tensors = safetensors.read([folder / "model.safetensors"])
        for name in "qkvo":
            self.assertIn(f"model.layers.1.self_attn.{name}_proj.bias", tensors)

    def test_an_unused_padding_token_is_none(self):
        folder = self.made(self.write(change=lambda writer: unused(writer, "padding")))
        self.assertIsNone(json.loads((folder / "config.json").read_text())["pad_token_id"])

    def test_what_is_not_converted_is_named(self):
        drop = "model.layers.1.mlp.up_proj.weight"
        cases = {
            "general.architecture: expected one of llama, qwen2, qwen3, smollm3, granite, found 'gemma3'": dict(arch="gemma3"),
            "field tokenizer.ggml.pre: expected one of .*, found 'tekken'": dict(pre="tekken"),
            "tensor blk.1.ffn_up.weight: missing": dict(drop=[drop]),
            "field llama.embedding_scale: not supported": dict(change=lambda writer: writer.add_embedding_scale(2.0)),
            "field granite.logit_scale: expected 0.0001 to 10000, found 0": dict(arch="granite", change=lambda writer: writer.add_logit_scale(0.0)),
            "field granite.rope.scaling.finetuned: expected true, found false": dict(
                arch="granite", change=lambda writer: writer.add_rope_scaling_finetuned(False)
            ),
            "a mixture of experts": dict(change=lambda writer: writer.add_expert_count(8)),
            "field llama.attention.sliding_window: not supported": dict(change=lambda writer: writer.add_sliding_window(64)),
            "tensor blk.0.extra.weight: not supported": dict(change=lambda writer: writer.add_tensor("blk.0.extra.weight", np.ones(4, np.float32))),
            r"\.gguf: tensor extra: expected one of F32, .*, found Q5_K$": dict(
                change=lambda writer: writer.add_tensor("extra", np.zeros((1, 176), np.uint8), raw_dtype=gguf.GGMLQuantizationType.Q5_K)
            ),
            "tensor blk.1.attn_k.bias: missing": dict(arch="qwen2", drop=["model.layers.1.self_attn.k_proj.bias"]),
            "tensor blk.0.attn_output.bias: missing": dict(change=lambda writer: add_biases(writer, outputs=False)),
            "eos_token_id: expected a token that is used, found 9": dict(change=lambda writer: unused(writer, "eos")),
            "bos_token_id: expected a token that is used, found 9": dict(change=lambda writer: unused(writer, "bos")),
            "eot_token_id: expected a token that is used, found 9": dict(change=lambda writer: unused(writer, "eot")),
            "rms_epsilon: expected 1e-12 to 1, found 1.5": dict(change=lambda writer: number(writer, "attention.layer_norm_rms_epsilon", 1.5)),
            "rms_epsilon: expected 1e-12 to 1, found 0": dict(change=lambda writer: number(writer, "attention.layer_norm_rms_epsilon", 1e-60)),
            r"freq_base: expected 1 to 1e\+12, found inf": dict(change=lambda writer: number(writer, "rope.freq_base", 1e39)),
            "context_length: expected 1 to 268435456, found 536870912": dict(change=lambda writer: number(writer, "context_length", 1 << 29)),
            "rope.scaling.yarn_beta_slow: expected 1 to 1, found 2": dict(
                change=lambda writer: (writer.add_rope_scaling_type(gguf.RopeScalingType.YARN), writer.add_rope_scaling_factor(4.0), writer.add_rope_scaling_yarn_beta_slow(2.0))
            ),
            "rope.scaling.type: expected none, linear or yarn, found 'longrope'": dict(change=lambda writer: writer.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE)),
        }
        for words, options in cases.items():
            with self.subTest(words), self.assertRaisesRegex(ToolError, words):
                self.made(self.write(**options))
            self.assertFalse((self.dir / "out").exists())

    def test_an_error_is_one_line_without_control_characters(self):
        key = "llama.\x1b[31m\n"
        path = self.write(change=lambda writer: writer.add_uint32(key, 1))
        with self.assertRaises(SystemExit) as ended:
            run(lambda _: convert(path, self.dir / "out"))
        self.assertEqual(ended.exception.code, 1)
        self.assertIn(r"field llama.\x1b[31m\n: not supported", self.stderr.getvalue().splitlines()[-1])
        self.assertNotIn("\x1b", self.stderr.getvalue())

    def test_damage_is_an_error(self):
        path = self.write()
        whole = path.read_bytes()
        rng = random.Random(3)
        damaged = self.dir / "damaged.gguf"
        metadata = Gguf(path).tensors["token_embd.weight"].begin
        cuts = [0, 3, 4, 10, 23, *(rng.randrange(len(whole)) for _ in range(40))]
        for cut in cuts:
            damaged.write_bytes(whole[:cut])
            with self.assertRaises(ToolError, msg=str(cut)):
                convert(damaged, self.dir / "out")
        refused = 0
        for _ in range(400):
            changed = bytearray(whole)
            for _ in range(rng.randrange(1, 4)):
                changed[rng.randrange(metadata)] = rng.choice([0, 1, 127, 255, rng.randrange(256)])
            damaged.write_bytes(changed)
            try:
                convert(damaged, self.dir / "out", overwrite=True)
            except ToolError:
                refused += 1
        self.assertGreater(refused, 100)


if __name__ == "__main__":
    unittest.main()
