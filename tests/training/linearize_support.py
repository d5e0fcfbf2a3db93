"""A tiny random teacher with a tokenizer, as a Hugging Face folder, and runs of polysketch-linearize on it."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import tokenizers
import torch
import transformers

import frame_models
import support

transformers.utils.logging.disable_progress_bar()

LAYERS, VOCABULARY = 4, 400
OPTIONS = (
    "--device=cpu",
    "--threads=1",
    "--window=16",
    "--sinks=3",
    "--sample-length=192",
    "--sample-texts=1",
    "--sample-prompts=2",
    "--evaluation-lengths=128,192",
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


class LinearizeTest(unittest.TestCase):
    """self.dir with a text and, in teacher/, the teacher of the class."""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.dir = pathlib.Path(folder.name)
        cls.text = cls.dir / "text.txt"
        cls.text.write_text((support.ROOT / "docs/attention.md").read_text() + (support.ROOT / "docs/numerics.md").read_text())
        cls.teacher = cls.dir / "teacher"
        write_teacher(cls.teacher, cls.text.read_text())

    def start(self, out: pathlib.Path, *more, teacher: pathlib.Path | None = None) -> subprocess.Popen:
        options = [f"--from={teacher or self.teacher}", f"--out={out}", f"--text={self.text}", *OPTIONS, *map(str, more)]
        process = subprocess.Popen(
            [sys.executable, "-B", "-m", "polysketch_training.linearize.command", *options],
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
        stdout, stderr = process.communicate(timeout=300)
        self.assertEqual(process.returncode, status, stderr)
        return stdout, stderr


def files_of(run: pathlib.Path) -> dict[str, bytes]:
    """What a run leaves, but for its log, its times and TensorBoard's files, which hold times, and its saved state, whose archive
    names a temporary file."""
    skipped = ("log.txt", "times.csv", "state.pt")
    return {
        str(path.relative_to(run)): path.read_bytes()
        for path in sorted(run.rglob("*"))
        if path.is_file() and path.name not in skipped and "tensorboard" not in path.parts
    }
