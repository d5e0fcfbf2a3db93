"""tokenizer.json and tokenizer_config.json: AutoTokenizer of transformers loads the folder and gives SentencePiece's ids."""

import io
import itertools
import json
import pathlib
import re
import unittest

import sentencepiece
from transformers import AutoTokenizer

import support
from train_support import TrainTest

from polysketch_tools.sentencepiece_model import UNIGRAM, parse
from polysketch_training.export import export_model

LINES = 10_000
SPECIAL = re.compile("<unk>|<s>|</s>")

# What a line of prose does not hold. "<s>" and "</s>" are pieces of another kind: test_special_pieces.
HARD = (
    *("", " ", "  ", "   ", " a", "a ", "  a  b   c ", "\n", "\n\n", "\na", "a\n", " \n ", "a\tb", "\t", "\r\n", "\u00a0x\u3000y"),
    *("\u2581", "\u2581\u2581", "a\u2581b", "\u2581a", " \u2581 ", "<0x0A>", "<0x41>b", "< s>", "<S>", "<s", "|<|turn|>|"),
    *("\0", "a\x00b\x01\x1f\x7f", "\u200b\u200d\ufeff", "\ufffd", "\x85", "\u2028", "\u202eabc"),
    *("caf\u00e9", "\u65e5\u672c\u8a9e", "\u0391\u03b8\u03ae\u03bd\u03b1", "\U0001f600\U0001f468\u200d\U0001f469", "\U0010ffff"),
    *("aaaaaaaaaaaaaaaaaaaaaaa", "-" * 79, "=" * 80, " " * 61, "\n" * 30, "." * 500, "x" * 3000, "ab" * 700, "\u00e9" * 50),
)

WITHOUT_PREFIX = b"\x1a\2\x18\0"  # after a model: its NormalizerSpec gets add_dummy_prefix = false


def lines_of_the_tree() -> list[str]:
    """Lines of documents and sources: prose, tables, code, deep indentation."""
    files = itertools.chain(*(sorted(support.ROOT.glob(p)) for p in ("*.md", "docs/*.md", "server/**/*.cc", "tools/**/*.py")))
    lines = itertools.chain.from_iterable(file.read_text().splitlines() for file in files)
    return list(itertools.islice((line for line in lines if not SPECIAL.search(line)), LINES))


def train(lines: list[str], **options) -> bytes:
    """A SentencePiece model of some hundred pieces."""
    model = io.BytesIO()
    defaults = {"vocab_size": 600, "hard_vocab_limit": False, "num_threads": 1, "minloglevel": 2}
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines[:1500]), model_writer=model, **defaults | options)
    return model.getvalue()


def equally_good(processor, ids: list[int], others: list[int]) -> bool:
    """Whether both are the best segmentation of a unigram model: the same pieces, of the same score, in another order."""
    unigram = parse(processor.serialized_model_proto()).model_type == UNIGRAM
    return unigram and sorted(ids) == sorted(others)


class HuggingFaceTest(TrainTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.lines = lines_of_the_tree()

    def folder_of(self, data: bytes, name: str = "tokenizer", **fields) -> pathlib.Path:
        """The model folder that export_model writes with this SentencePiece model."""
        source = self.dir / f"{name}-source"
        source.mkdir()
        (source / "tokenizer.model").write_bytes(data)
        if fields:
            (source / "tokenizer_config.json").write_text(json.dumps(fields))
        size = sentencepiece.SentencePieceProcessor(model_proto=data).piece_size()
        model = support.small_model("softmax", vocab_size=size)
        export_model(model, self.dir / name, tokenizer=source / "tokenizer.model")
        self.assertTrue((self.dir / name / "tokenizer.json").exists())  # transformers would read tokenizer.model by its own rules
        return self.dir / name

    def expect_same_ids(self, folder: pathlib.Path, texts):
        theirs = AutoTokenizer.from_pretrained(folder)
        ours = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
        wanted = ours.encode(list(texts))
        found = theirs(list(texts), add_special_tokens=False).input_ids
        different = [(text, w, f) for text, w, f in zip(texts, wanted, found, strict=True) if w != f]
        different = [case for case in different if not equally_good(ours, *case[1:])]
        self.assertEqual(different[:3], [], f"{len(different)} of {len(texts)} texts")
        return theirs, ours

    def test_bundled_model(self):
        self.assertEqual(len(self.lines), LINES)
        theirs, ours = self.expect_same_ids(support.DEMO, self.lines)
        self.expect_same_ids(support.DEMO, HARD)
        whole = "\n".join(self.lines)
        self.expect_same_ids(support.DEMO, [whole])
        self.assertEqual(theirs.decode(ours.encode(whole)), whole)
        names = (theirs.bos_token_id, theirs.eos_token_id, theirs.unk_token_id, theirs.pad_token_id, len(theirs))
        self.assertEqual(names, (1, 2, 0, None, 4096))
        self.assertEqual(theirs("It was").input_ids, [1, *ours.encode("It was")])

    def test_kinds_of_models(self):
        kept = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
        cases = {
            "bpe": {"model_type": "bpe", "byte_fallback": True, **kept},
            "bpe-no-prefix": {"model_type": "bpe", "byte_fallback": True, "add_dummy_prefix": False, **kept},
            "bpe-no-bytes": {"model_type": "bpe", **kept},
            "bpe-defaults": {"model_type": "bpe"},
            "bpe-symbols": {"model_type": "bpe", "byte_fallback": True, "user_defined_symbols": ["\n", "<|turn|>", "--"], **kept},
            "bpe-defaults-symbols": {"model_type": "bpe", "user_defined_symbols": ["<|turn|>", "--"]},
            "unigram": {"model_type": "unigram", "byte_fallback": True, **kept},
            "unigram-defaults": {"model_type": "unigram"},
            "unigram-symbols": {"model_type": "unigram", "user_defined_symbols": ["\n", "<|turn|>"], **kept},
        }
        for name, options in cases.items():
            with self.subTest(name):
                folder = self.folder_of(train(self.lines, **options), name)
                self.expect_same_ids(folder, HARD)
                self.expect_same_ids(folder, self.lines[::4])
                # SentencePiece sums the scores of a unigram path in float32: in a long text rounding decides between paths.
                if options["model_type"] == "bpe":
                    self.expect_same_ids(folder, ["\n".join(self.lines[:500])])

    def test_special_pieces(self):
        """transformers makes the control id of the text of a control piece; the text after it has no dummy prefix."""
        theirs, ours = self.expect_same_ids(support.DEMO, HARD)
        data = (support.DEMO / "tokenizer.model").read_bytes()
        later = sentencepiece.SentencePieceProcessor(model_proto=data + WITHOUT_PREFIX)
        found = theirs("<s>It was</s> late<unk>", add_special_tokens=False).input_ids
        self.assertEqual(found, [1, *later.encode("It was"), 2, *later.encode(" late"), 0])
        self.assertEqual(theirs.decode(found, skip_special_tokens=True), "It was late")
        self.assertEqual(theirs(["a", "b"]).input_ids, [[1, *ours.encode("a")], [1, *ours.encode("b")]])

    def test_control_pieces_and_names_of_a_chat_template(self):
        data = train(self.lines, model_type="bpe", control_symbols=["<|turn|>", "<|end|>"])
        folder = self.folder_of(data, eos_token={"content": "<|end|>"}, chat_template="{{ eos_token }}", padding_side="left")
        theirs, _ = self.expect_same_ids(folder, HARD[:20])
        self.assertEqual(theirs.convert_ids_to_tokens(theirs("<|turn|>a<|end|>").input_ids)[1:], ["<|turn|>", "a", "<|end|>"])
        self.assertEqual((theirs.eos_token, theirs.bos_token, theirs.chat_template), ("<|end|>", "<s>", "{{ eos_token }}"))


if __name__ == "__main__":
    unittest.main()
