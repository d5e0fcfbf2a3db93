"""tokenizer.json and tokenizer_config.json of a SentencePiece model: what is in them, what is refused.

tests/training/hugging_face_test.py compares the ids, with transformers.
"""

import io
import json
import pathlib
import unittest

import support
from support import DEMO

import sentencepiece

from polysketch_tools import hugging_face
from polysketch_tools.errors import ToolError
from polysketch_tools.hugging_face import NotRepresentable
from polysketch_tools.model_config import read_model_config
from polysketch_tools.sentencepiece_model import BPE, PieceType, parse

MODEL = (DEMO / "tokenizer.model").read_bytes()


def field(number: int, value: int | bytes) -> bytes:
    """A field of a protobuf message, of fewer than 128 bytes."""
    key = bytes([number << 3 & 0x7F | (2 if isinstance(value, bytes) else 0)])
    if number > 15:
        key = bytes([key[0] | 0x80, number >> 4])
    return key + (bytes([len(value)]) + value if isinstance(value, bytes) else bytes([value]))


def piece(text: str, kind: PieceType) -> bytes:
    return field(1, field(1, text.encode()) + field(3, kind))


class ParserTest(unittest.TestCase):
    def test_as_the_library_reads_it(self):
        library, model = sentencepiece.SentencePieceProcessor(model_proto=MODEL), parse(MODEL)
        self.assertEqual(len(model.pieces), library.piece_size())
        for i, found in enumerate(model.pieces):
            self.assertEqual((found.text, found.score), (library.id_to_piece(i), library.get_score(i)))
            self.assertEqual(found.type == PieceType.CONTROL, library.is_control(i))
            self.assertEqual(found.type == PieceType.BYTE, library.is_byte(i))
        self.assertEqual((model.unk_id, model.bos_id, model.eos_id, model.pad_id), (0, 1, 2, -1))
        self.assertEqual((model.model_type, model.byte_fallback, model.charsmap), (BPE, True, b""))

    def test_damage(self):
        # A cut between two fields leaves a message.
        for data in (MODEL[:-1], MODEL[:20], b"\xff" * 12, b"\x0b", b"\x0a\x05abc", b"\x0a\x02\x18\x09"):
            with self.subTest(data[:8]), self.assertRaisesRegex(ToolError, "expected a SentencePiece model, found damage"):
                parse(data)


class FilesTest(support.ToolTest):
    def write_files(self, data: bytes, beside: dict | None = None) -> pathlib.Path:
        source, out = self.dir / "source", self.dir / "out"
        source.mkdir()
        out.mkdir()
        (source / "tokenizer.model").write_bytes(data)
        if beside is not None:
            (source / "tokenizer_config.json").write_text(json.dumps(beside))
        hugging_face.write_files(out, source / "tokenizer.model", read_model_config(DEMO / "config.json"))
        return out

    def test_bundled_model(self):
        out = self.write_files(MODEL)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            self.assertEqual((out / name).read_text(), (DEMO / name).read_text(), name)

    def test_fields_beside_the_tokenizer(self):
        theirs = {"chat_template": "{{ x }}", "eos_token": {"content": "</s>"}, "pad_token": None, "tokenizer_class": "Llama"}
        fields = json.loads((self.write_files(MODEL, theirs) / "tokenizer_config.json").read_text())
        expected = json.loads((DEMO / "tokenizer_config.json").read_text())
        self.assertEqual(fields, expected | {"chat_template": "{{ x }}", "eos_token": "</s>", "pad_token": None})

    def test_a_name_that_is_no_piece(self):
        message = 'field "eos_token": expected a piece of tokenizer.model, found \'<|end|>\''
        with self.assertRaises(ToolError) as caught:
            self.write_files(MODEL, {"eos_token": "<|end|>"})
        self.assertIn(message, str(caught.exception))

    def test_a_model_that_is_not_represented(self):
        out = self.write_files(MODEL + piece("unused", PieceType.UNUSED), {"chat_template": "x"})
        self.assertIn("no tokenizer.json is written: expected no unused pieces", self.stderr.getvalue())
        self.assertEqual([path.name for path in out.iterdir()], ["tokenizer_config.json"])
        self.assertEqual(json.loads((out / "tokenizer_config.json").read_text()), {"chat_template": "x"})

    def test_reasons(self):
        trained = io.BytesIO()
        options = {"vocab_size": 60, "hard_vocab_limit": False, "model_type": "bpe", "minloglevel": 2}
        symbols = {"user_defined_symbols": ["\uff01"]}  # the normalisation makes "!" of it
        text = iter(["a text of some words, and some words more"] * 9)
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=text, model_writer=trained, **options, **symbols)
        cases = {
            "found model_type 3": MODEL + field(2, field(3, 3)),
            "expected the marker of a space before a word": MODEL + field(2, field(24, 1)),
            "expected each character to be a piece, 'Ж' is not": MODEL + piece("Жa", PieceType.NORMAL),
            "'！': expected one that the normalisation does not change, found '!'": trained.getvalue(),
            "beside piece '▁thqt', to which no merges lead": MODEL
            + piece("▁thqt", PieceType.NORMAL)
            + piece("<turn>", PieceType.USER_DEFINED),
        }
        for reason, data in cases.items():
            with self.subTest(reason), self.assertRaises(NotRepresentable) as caught:
                hugging_face.tokenizer_json(parse(data), data, add_bos=False)
            self.assertIn(reason, str(caught.exception))


if __name__ == "__main__":
    unittest.main()
