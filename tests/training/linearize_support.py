"""A tiny random teacher with a tokenizer, as a Hugging Face folder, and runs of polysketch-linearize on it."""

import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

import numpy as np
import tokenizers
import torch
import transformers

import frame_models
import support
from frames_test import probe

from polysketch_training.linearize.decoder import Decoder

transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()  # of tensors that only the server knows

LAYERS, VOCABULARY = 4, 400
OPTIONS = (
    "--device=cpu",
    "--threads=1",
    "--window=16",
    "--sinks=3",
    "--sample-length=192",
    "--sample-texts=1",
    "--sample-prompts=2",
    "--evaluation-lengths=160,192",
    "--evaluation-texts=2",
    "--evaluation-prompts=3",
    "--steps=6",
    "--tokens-per-step=128",
    "--lengths=64,128",
    "--save-every=2",
    "--measure-every=3",
    "--learning-rate=0.01",
)


def train_tokenizer(text: str) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [tokenizers.pre_tokenizers.Digits(individual_digits=True), tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<|end|>", "<|start|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([text], trainer)
    return tokenizer


def write_teacher(folder: pathlib.Path, text: str, name: str = "llama_own_kv_heads", dtype=torch.float32, **changes) -> None:
    """A model of a case of frame_models, with everything that a published folder has beside its weights."""
    model = frame_models.random_model(
        name,
        **{
            "vocab_size": VOCABULARY + 5,  # padded
            "hidden_size": 32,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "tie_word_embeddings": True,
            "bos_token_id": 0,
            "eos_token_id": 1,
            "max_position_embeddings": 1024,
            **changes,
        },
    ).to(dtype)
    model.save_pretrained(folder)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=train_tokenizer(text), bos_token="<|start|>", eos_token="<|end|>")
    tokenizer.chat_template = "{% for m in messages %}<|start|>{{ m.content }}<|end|>{% endfor %}"
    tokenizer.save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 1], "temperature": 0.5}))
    (folder / "LICENSE").write_text("A licence.\n")
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\n")


def write_gguf(path: pathlib.Path, text: str) -> None:
    """A random `llama` in float32, with a tokenizer, as llama.cpp writes it."""
    width, mlp, heads = 32, 48, 2
    tokenizer = json.loads(train_tokenizer(text).to_str())["model"]
    vocabulary = sorted(tokenizer["vocab"], key=tokenizer["vocab"].get)
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in tokenizer["merges"]]
    fields = {
        "general.architecture": "llama",
        "llama.block_count": LAYERS,
        "llama.context_length": 1024,
        "llama.embedding_length": width,
        "llama.feed_forward_length": mlp,
        "llama.attention.head_count": heads,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": vocabulary,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.token_type": [3 if piece.startswith("<|") else 1 for piece in vocabulary],
        "tokenizer.ggml.eos_token_id": 0,
    }
    shapes = {"token_embd.weight": (len(vocabulary), width), "output_norm.weight": (width,)}
    for i in range(LAYERS):
        matrices = {"attn_q": (width, width), "attn_k": (width, width), "attn_v": (width, width), "attn_output": (width, width)}
        matrices |= {"ffn_gate": (mlp, width), "ffn_up": (mlp, width), "ffn_down": (width, mlp)}
        matrices |= {"attn_norm": (width,), "ffn_norm": (width,)}
        shapes |= {f"blk.{i}.{name}.weight": shape for name, shape in matrices.items()}
    rng = np.random.default_rng(5)

    def string(value: str) -> bytes:
        return struct.pack("<Q", len(value.encode())) + value.encode()

    def value(x) -> bytes:
        """Its type, and itself."""
        if isinstance(x, list):
            kind, items = (8, [string(one) for one in x]) if isinstance(x[0], str) else (5, [struct.pack("<i", one) for one in x])
            return struct.pack("<IIQ", 9, kind, len(x)) + b"".join(items)
        if isinstance(x, str):
            return struct.pack("<I", 8) + string(x)
        return struct.pack("<If", 6, x) if isinstance(x, float) else struct.pack("<II", 4, x)

    head, data = struct.pack("<4sIQQ", b"GGUF", 3, len(shapes), len(fields)), b""
    head += b"".join(string(name) + value(x) for name, x in fields.items())
    for name, shape in shapes.items():
        head += string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), 0, len(data))
        values = rng.normal(size=shape).astype(np.float32) * (0.2 if len(shape) > 1 else 0.1) + (len(shape) == 1)
        data += values.astype("<f4").tobytes()
        data += b"\0" * (-len(data) % 32)
    path.write_bytes(head + b"\0" * (-len(head) % 32) + data)


def random_tokens(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(2, VOCABULARY, count).astype(np.int32)


def log_probabilities(decoder: Decoder, tokens: np.ndarray) -> np.ndarray:
    """[tokens, vocabulary] by the model that is evaluated."""
    return (decoder.hidden(tokens) @ decoder.head.T).double().log_softmax(-1).numpy()


def served(model: pathlib.Path, backend: str, tokens: np.ndarray) -> np.ndarray:
    """Log-probabilities [tokens, vocabulary] by the server's model."""
    logits = torch.from_numpy(probe(model, backend, "f32", str(len(tokens)), tokens).copy())
    return logits.double().log_softmax(-1).numpy()


class LinearizeTest(unittest.TestCase):
    """self.dir with a text and, in teacher/, the teacher of the class."""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.dir = pathlib.Path(folder.name)
        cls.text = cls.dir / "text.txt"
        cls.text.write_text((support.ROOT / "tools/polysketch_tools/calibration.txt").read_text()[:60000])
        cls.teacher = cls.dir / "teacher"
        write_teacher(cls.teacher, cls.text.read_text())

    def options(self, out: pathlib.Path, *more, teacher: pathlib.Path | None = None) -> list[str]:
        """Options of a run; later ones win."""
        return [f"--from={teacher or self.teacher}", f"--out={out}", f"--text={self.text}", *OPTIONS, *map(str, more)]

    def check_served(self, model: pathlib.Path, backends, count: int, seed: int) -> None:
        """The server's log-probabilities of random tokens are those of the evaluated model."""
        tokens, decoder = random_tokens(count, seed), Decoder(model, torch.device("cpu"))
        expected = log_probabilities(decoder, tokens)
        for backend in backends:
            self.assertLess(np.abs(served(model, backend, tokens) - expected).max(), 1e-3, backend)

    def start(self, out: pathlib.Path, *more, teacher: pathlib.Path | None = None) -> subprocess.Popen:
        process = subprocess.Popen(
            [sys.executable, "-B", "-m", "polysketch_training.linearize.command", *self.options(out, *more, teacher=teacher)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        self.addCleanup(self.end, process)
        return process

    def end(self, process: subprocess.Popen) -> None:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()

    def run_all(self, out: pathlib.Path, *more, teacher: pathlib.Path | None = None, status: int = 0) -> tuple[str, str]:
        """Returns what the program prints on stdout and on stderr."""
        process = self.start(out, *more, teacher=teacher)
        stdout, stderr = process.communicate(timeout=3600)  # a hang, not a slow machine
        self.assertEqual(process.returncode, status, stderr)
        return stdout, stderr

    def tear(self, path: pathlib.Path, lost: int) -> None:
        with open(path, "r+b") as file:
            file.truncate(path.stat().st_size - lost)

    def check_same_files(self, run: pathlib.Path, other: pathlib.Path) -> None:
        """Two runs left the same bytes."""
        expected, found = files_of(run), files_of(other)
        self.assertEqual(list(expected), list(found))
        for name, content in expected.items():
            self.assertEqual(content, found[name], name)


def files_of(run: pathlib.Path) -> dict[str, bytes]:
    """What a run leaves, but for its log, its times and TensorBoard's files, which hold times, and its saved state, whose archive
    names a temporary file."""
    skipped = ("log.txt", "times.csv", "state.pt")
    return {
        str(path.relative_to(run)): path.read_bytes()
        for path in sorted(run.rglob("*"))
        if path.is_file() and path.name not in skipped and "tensorboard" not in path.parts
    }
