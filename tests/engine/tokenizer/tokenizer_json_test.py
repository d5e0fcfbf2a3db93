"""tokenizer.json against PyPI's tokenizers: the same ids and the same text, for tokenizers trained here in the styles of public
models. POLYSKETCH_TEST_FULL=1 encodes 200,000 texts with each."""

import copy
import json
import os
import pathlib
import random
import re
import struct
import subprocess
import sys
import tempfile
import unicodedata
import unittest

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

ROOT = pathlib.Path(__file__).resolve().parents[3]
PROGRAM = pathlib.Path(os.environ.get("POLYSKETCH_BIN_DIR", ROOT / "build/cpu/bin")) / "encode_texts"
TEXTS = 200_000 if os.environ.get("POLYSKETCH_TEST_FULL") else 1_000
SEED = 20261126

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# A range of code points for each script.
SCRIPTS = [
    (0x41, 0x7A), (0xC0, 0x24F), (0x250, 0x2AF), (0x370, 0x3FF), (0x400, 0x4FF), (0x531, 0x586), (0x5D0, 0x5EA), (0x620, 0x64A),
    (0x710, 0x72F), (0x780, 0x7A5), (0x7CA, 0x7E7), (0x904, 0x939), (0x93E, 0x94D), (0x985, 0x9B9), (0xA05, 0xA39), (0xA85, 0xAB9),
    (0xB05, 0xB39), (0xB85, 0xBB9), (0xC05, 0xC39), (0xC85, 0xCB9), (0xD05, 0xD39), (0xD85, 0xDC6), (0xE01, 0xE3A), (0xE81, 0xEBD),
    (0xF40, 0xF6C), (0x1000, 0x102A), (0x10D0, 0x10FA), (0x1100, 0x11FF), (0x1200, 0x1248), (0x13A0, 0x13F4), (0x1401, 0x1676),
    (0x1681, 0x169A), (0x16A0, 0x16EA), (0x1780, 0x17B3), (0x1820, 0x1877), (0x1B05, 0x1B33), (0x2C80, 0x2CE4), (0x2D30, 0x2D67),
    (0x3041, 0x3096), (0x30A1, 0x30FA), (0x3105, 0x312F), (0x4E00, 0x9FFF), (0xA000, 0xA48C), (0xAC00, 0xD7A3), (0x10330, 0x1034A),
    (0x1F300, 0x1F64F), (0x1F900, 0x1F9FF), (0x2000, 0x206F), (0x20A0, 0x20BF), (0x2150, 0x218B), (0x2460, 0x24FF), (0x300, 0x36F),
    (0x3099, 0x309A), (0xFF01, 0xFF9F), (0x1D400, 0x1D7FF), (0x1D165, 0x1D172), (0xF900, 0xFAD9), (0x0, 0x20), (0x80, 0xBF),
]  # fmt: skip
WORDS = (
    "the of and to in is it that was He said I'm don't DON'T we'll they'Re x's 's ' \" ( ) { } [ ] < > / \\ | == != -> => ++ -- ... "
    "def return self None if else for while int main() #include <stdio.h> std::vector<int32_t> 0 1 12 123 1234 12345 3.14 1e-9 0xFF "
    "2024-01-31 http://example.com/a?b=c#d a_b snake_case CamelCase HTTPServer naïve café Zürich ſ 'ſ K € … — “quoted” ™ ½ ² ٣ ４ "
    "<s> </s> <|endoftext|> <|im_start|> <tool_call> </tool_call> <think> [INST] ▁ ▁▁ <0x0A> Ġ Ċ \ufeff \u200b \u200d \u180e \x85 "
    "e\u0301 o\u0308\u0323 \u1112\u1161\u11ab \u0958 \u2126 \u09c7\u09be 👩‍👩‍👧 🇩🇪 ⌘ ⅷ Ⅷ"
).split(" ")
SPACES = [" ", " ", " ", " ", "", "  ", "   ", "\n", "\n\n", " \n", "\n ", "\t", "\r\n", "\u00a0", "\u3000", "\u2028", "\x0b", "      "]


def sources():
    """Prose and code of this tree."""
    texts = []
    for pattern in ("docs/*.md", "*.md", "engine/*/*.cc", "tools/polysketch_tools/*.py", "tools/polysketch_tools/calibration.txt"):
        texts += [path.read_text(encoding="utf-8") for path in sorted(ROOT.glob(pattern))]
    return texts


def texts_of(rng, lines, count):
    made = ["", " ", "  ", "\n", "a", " a", "a ", "<s>", "<|im_start|>user\nHi<|im_end|>\n"]
    while len(made) < count:
        kind = rng.randrange(6)
        if kind <= 1:
            made.append(rng.choice(lines))
        elif kind == 2:
            made.append("".join(rng.choice(WORDS) + rng.choice(SPACES) for _ in range(rng.randrange(1, 12))))
        elif kind == 3:
            low, high = rng.choice(SCRIPTS)
            made.append(
                "".join(rng.choice([chr(rng.randint(low, high)), chr(rng.randint(low, high)), rng.choice(SPACES)]) for _ in range(rng.randrange(1, 20)))
            )
        elif kind == 4:
            made.append("".join(chr(rng.randint(*rng.choice(SCRIPTS))) for _ in range(rng.randrange(1, 16))))
        else:
            made.append(bytes(rng.randrange(256) for _ in range(rng.randrange(1, 24))).decode("utf-8", "replace"))
    return made


def run(path, texts, mode="message"):
    """The ids and the streamed text of each text."""
    frames = b"".join(struct.pack("<I", len(data)) + data for data in (text.encode() for text in texts))
    done = subprocess.run([PROGRAM, path, mode], input=frames, capture_output=True, check=False)
    if done.returncode != 0:
        raise AssertionError(done.stderr.decode("utf-8", "replace"))
    out, at = [], 0
    for _ in texts:
        (count,) = struct.unpack_from("<I", done.stdout, at)
        ids = list(struct.unpack_from(f"<{count}i", done.stdout, at + 4))
        at += 4 + 4 * count
        (size,) = struct.unpack_from("<I", done.stdout, at)
        out.append((ids, done.stdout[at + 4 : at + 4 + size].decode()))
        at += 4 + size
    return out


def byte_level(style, *steps, normalizer=None, ignore_merges=False, prefix=False, own_regex=False):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    last = pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=own_regex)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*steps, last]) if steps else last
    tokenizer.decoder = decoders.ByteLevel()
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    return style, tokenizer, dict(initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=specials)


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior, invert)


def sentencepiece_like(style, normalizer=None, pre_tokenizer=None, decoder=None):
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    strip = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoder or decoders.Sequence(strip)
    specials = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    return style, tokenizer, dict(special_tokens=specials)


def styles():
    yield byte_level("gpt2", own_regex=True)
    yield byte_level("gpt2_prefix", own_regex=True, prefix=True)
    yield byte_level("smollm", pre_tokenizers.Digits(individual_digits=True), own_regex=True)
    yield byte_level("digits", pre_tokenizers.Digits(individual_digits=False), own_regex=True)
    yield byte_level("llama3", split(LLAMA3), ignore_merges=True)
    yield byte_level("qwen2", split(QWEN2), normalizer=normalizers.NFC())
    yield byte_level("o200k", split(O200K))
    cjk = split(r"[一-龥぀-ゟ゠-ヿ]+")
    yield byte_level("deepseek3", split(r"\p{N}{1,3}"), cjk, split(DEEPSEEK3))
    for behavior in ("removed", "merged_with_previous", "merged_with_next", "contiguous"):
        for invert in (False, True):
            name = f"{behavior}{'_inverted' if invert else ''}"
            yield byte_level(name, split(r"[\s\p{P}]|\d\d", behavior, invert))
    yield byte_level("words", split(r"\w+"))
    yield byte_level("look", split(r"(?<=[a-z])(?=[A-Z])|(?<!\d)\d{2,}\b|\B_|\w\h(?!\w)"))
    prefix = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    yield sentencepiece_like("llama2", normalizers.Sequence(prefix))
    first = pre_tokenizers.Metaspace("▁", prepend_scheme="first", split=False)
    yield sentencepiece_like("mistral", pre_tokenizer=first)
    always = pre_tokenizers.Metaspace("▁", prepend_scheme="always", split=True)
    yield sentencepiece_like("metaspace", pre_tokenizer=always, decoder=decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace("▁", "always", True)]))
    gemma = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    words = pre_tokenizers.Split(" ", "merged_with_previous")
    yield sentencepiece_like("gemma", normalizers.Replace(" ", "▁"), words, gemma)


def untrained_bytes(path):
    """The trainer makes byte tokens special; models have them as plain tokens."""
    data = json.loads(path.read_text(encoding="utf-8"))
    data["added_tokens"] = [token for token in data["added_tokens"] if not token["content"].startswith("<0x")]
    path.write_text(json.dumps(data), encoding="utf-8")


class TokenizerJson(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.corpus = sources()
        cls.lines = [line for text in cls.corpus for line in text.splitlines(keepends=True)]
        cls.lines += ["".join(pair) for pair in zip(cls.lines, cls.lines[1:])][:2000]
        cls.folder = tempfile.TemporaryDirectory()
        rng = random.Random(SEED)
        texts = cls.corpus + texts_of(rng, cls.lines, 4000)
        # No merges may lead to a control token.
        cls.trained_on = [text.replace("<|", "< |").replace("s>", "s >") for text in texts]

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def train(self, style, tokenizer, options, added=()):
        trainer = trainers.BpeTrainer(vocab_size=3000, show_progress=False, **options)
        tokenizer.train_from_iterator(self.trained_on, trainer)
        tokenizer.add_tokens(list(added))
        path = pathlib.Path(self.folder.name) / f"{style}.json"
        tokenizer.save(str(path))
        untrained_bytes(path)
        loaded = Tokenizer.from_file(str(path))
        loaded.encode_special_tokens = True  # a text never becomes a control token
        return path, loaded

    def compare(self, path, oracle, texts, mode="message", decodes=True):
        ours = run(path, texts, mode)
        expected = [encoding.ids for encoding in oracle.encode_batch(texts, add_special_tokens=False)]
        decoded = oracle.decode_batch(expected, skip_special_tokens=mode != "control")
        for text, (ids, streamed), theirs, whole in zip(texts, ours, expected, decoded):
            self.assertEqual(ids, theirs, f"{path.stem}: {text!r}")
            if decodes:
                self.assertEqual(streamed, whole, f"{path.stem}: {text!r}")

    def test_styles(self):
        rng = random.Random(SEED + 1)
        for style, tokenizer, options in styles():
            with self.subTest(style):
                path, oracle = self.train(style, tokenizer, options)
                self.compare(path, oracle, texts_of(rng, self.lines, TEXTS))

    def test_normalization_of_every_mark_and_composition(self):
        """Beside marks of other classes, which would change places with it, and as parts of its decomposition."""
        chars = [chr(c) for c in range(0x80, 0x1F000) if not 0xD800 <= c < 0xE000]
        chars = [c for c in chars if unicodedata.category(c).startswith("M") or unicodedata.normalize("NFD", c) != c]
        texts = ["a\u0300" + c + "\u0327b" + c + "\u0334\u0300" + unicodedata.normalize("NFD", c) for c in chars]
        style, tokenizer, options = byte_level("every_mark", split(QWEN2), normalizer=normalizers.NFC())
        path, oracle = self.train(style, tokenizer, options)
        self.compare(path, oracle, texts)
        self.assertGreater(len(texts), 13_000)  # 11,172 of them are of Hangul

    def test_added_tokens(self):
        added = [
            AddedToken("<tool_call>", normalized=False),
            AddedToken("<tool_call>x", normalized=False),
            AddedToken("</tool_call>", normalized=False, lstrip=True),
            AddedToken("<think>", normalized=False, rstrip=True),
            AddedToken("return", normalized=False, single_word=True),
            AddedToken("  ", normalized=False),
            AddedToken("café", normalized=True),
            AddedToken("the", normalized=True, lstrip=True, rstrip=True, single_word=True),
        ]
        rng = random.Random(SEED + 2)
        pieces = [token.content for token in added] + ["<tool_", "call>", "returns", "café", "cafe\u0301", "<", " ", "\n", "a", "the.", "\u200d", "Ⓐ", "🅰"]
        texts = ["".join(rng.choice(pieces) for _ in range(rng.randrange(1, 10))) for _ in range(TEXTS)]
        for normalizer in (None, normalizers.NFC()):
            style, tokenizer, options = byte_level(f"added_{normalizer is None}", split(QWEN2), normalizer=normalizer)
            path, oracle = self.train(style, tokenizer, options, added)
            self.compare(path, oracle, texts)
        for one in styles():
            if one[0] in ("llama2", "mistral", "metaspace"):
                path, oracle = self.train(*one, [AddedToken("<tool_call>", normalized=False)])
                self.compare(path, oracle, texts, decodes=False)

    def test_ids_of_added_tokens_are_those_of_the_vocabulary_or_the_next(self):
        style, tokenizer, options = byte_level("added_ids", split(QWEN2))
        path, _ = self.train(style, tokenizer, options, [AddedToken("<a>", normalized=False), AddedToken("<b>", normalized=False)])
        whole = json.loads(path.read_text())
        rng = random.Random(SEED + 6)
        texts = ["".join(rng.choice(["<a>", "<b>", "the", " ", "x"]) for _ in range(8)) for _ in range(50)]
        vocab = whole["model"]["vocab"]
        for known in ({}, {"<a>": len(vocab) + 9}, {"<b>": len(vocab)}):
            data = copy.deepcopy(whole)
            data["model"]["vocab"] |= known
            for token, i in zip(data["added_tokens"][-2:], (40, 7)):
                token["id"] = len(vocab) + i
            path.write_text(json.dumps(data), encoding="utf-8")
            oracle = Tokenizer.from_file(str(path))
            oracle.encode_special_tokens = True
            with self.subTest(known):
                self.compare(path, oracle, texts)

    def test_vocabularies_without_some_bytes(self):
        """A character is bytes, or the unknown token where one of them is missing."""
        pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256) if byte not in (0x62, 0xC3)), *"acd", "ac", "acd"]
        rng = random.Random(SEED + 7)
        texts = ["".join(rng.choice("aabbcdeefé漢") for _ in range(rng.randrange(1, 14))) for _ in range(500)] + ["bé" * 9000, "be" * 9000]
        for fuse in (False, True):
            model = models.BPE({piece: i for i, piece in enumerate(pieces)}, [("a", "c"), ("ac", "d")], byte_fallback=True, unk_token="<unk>", fuse_unk=fuse)
            path = pathlib.Path(self.folder.name) / "bytes.json"
            oracle = Tokenizer(model)
            oracle.save(str(path))
            with self.subTest(fuse):
                self.compare(path, oracle, texts, decodes=False)

    def test_refusals(self):
        """What the ids would not be those of tokenizers of, and what would take memory."""
        text, token = {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "a", "type_id": 0}}
        whole = {"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}}
        path = pathlib.Path(self.folder.name) / "refused.json"
        for single, expected in (
            ([text], None),
            ([token, text, token], None),
            ([token], "post_processor.single: expected the Sequence A, found none"),
            ([], "post_processor.single: expected the Sequence A, found none"),
            ([text, text], "post_processor.single[1]: expected the Sequence A once"),
            ([token, {"Sequence": {"id": "B", "type_id": 0}}], "post_processor.single[1]: expected the Sequence A once"),
            ([{"Sequence": "A"}], "post_processor.single[0]: expected the Sequence A once"),
        ):
            path.write_text(json.dumps(whole | {"post_processor": {"type": "TemplateProcessing", "single": single}}))
            with self.subTest(single):
                if expected is None:
                    self.assertEqual(run(path, ["ab"])[0][0], [0, 1])
                else:
                    with self.assertRaisesRegex(AssertionError, re.escape(expected)):
                        run(path, ["ab"])
        long = "a" * 10**6
        grows = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 40}
        for part, expected in (
            ({"normalizer": {"type": "Prepend", "prepend": "a" * 1024}}, "normalizer: expected normalizers that make at most 1024 bytes of one"),
            ({"normalizer": {"type": "Sequence", "normalizers": [grows, grows]}}, r"normalizers\[1\]: expected normalizers that make at most 1024 bytes"),
            ({"decoder": {"type": "ByteLevel"}}, "decoder: expected none of ByteLevel, as pre_tokenizer has it, found another"),
            ({"pre_tokenizer": {"type": "ByteLevel"}}, "decoder: expected ByteLevel, as pre_tokenizer has it, found another"),
            ({"normalizer": {"type": long}}, r"normalizer.type: expected NFC, .*found a{100,300}\.\.\.$"),
            ({"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(" * 10**6}, "behavior": "Isolated"}}, r"\({32,100}\.\.\.: parentheses"),
        ):
            path.write_text(json.dumps(whole | part))
            with self.subTest(str(part)[:80]), self.assertRaisesRegex(AssertionError, expected):
                run(path, ["ab"])
        for last, expected in ((2**20 + 1, None), (2**20 + 2, "expected an id of 0 to 1048577 for one of 2 tokens, found 1048578"), (-1, "found -1"), (2**63, "found")):
            path.write_text(json.dumps({"model": {"type": "BPE", "vocab": {"a": 0, "b": last}, "merges": []}}))
            with self.subTest(last):
                if expected is None:
                    self.assertEqual(run(path, ["ab"])[0][0], [0, last])
                else:
                    with self.assertRaisesRegex(AssertionError, expected):
                        run(path, ["ab"])

    def test_templates_spell_control_tokens(self):
        rng = random.Random(SEED + 3)
        for style, tokenizer, options in styles():
            path, oracle = self.train(style, tokenizer, options)
            oracle.encode_special_tokens = False
            control = [token.content for token in oracle.get_added_tokens_decoder().values()]
            pieces = [*control, " ", "\n", "user", "Hello, world", "<|im_", "end|>", "12"]
            texts = ["".join(rng.choice(pieces) for _ in range(rng.randrange(1, 12))) for _ in range(300)]
            with self.subTest(style):
                self.compare(path, oracle, texts, "template", decodes=False)
                # The text has control pieces as Hugging Face writes them: without spaces between them.
                self.compare(path, oracle, texts, "control")

    def test_smollm2(self):
        """The file that scripts/get-model makes; its vocabulary lacks some bytes."""
        path = ROOT / "models/smollm2/tokenizer.json"
        if not path.exists():
            self.skipTest("no models/smollm2: scripts/get-model smollm2 makes it")
        oracle = Tokenizer.from_file(str(path))
        rng = random.Random(SEED + 5)
        for mode in ("message", "template", "control"):
            oracle.encode_special_tokens = mode == "message"
            texts = [*texts_of(rng, self.lines, TEXTS), "\n\n1", "]\x06:o", "a\x06", *self.corpus]
            self.compare(path, oracle, texts, mode, decodes=mode != "template")

    def test_long_words(self):
        rng = random.Random(SEED + 4)
        texts = ["".join(rng.choice("abcxyz") for _ in range(20_000)), "漢字かな" * 5_000, " " * 20_000 + "x", "\n" * 9_999, "!?" * 9_000]
        for style, tokenizer, options in styles():
            if style in ("llama3", "llama2", "smollm", "gemma"):
                path, oracle = self.train(style, tokenizer, options)
                self.compare(path, oracle, texts)


if __name__ == "__main__":
    sys.exit(unittest.main())
