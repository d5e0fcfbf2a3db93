"""The tokenizer of a GGUF file as tokenizer.json and tokenizer_config.json: byte-level BPE, or that of SentencePiece."""

from polysketch_tools import hugging_face
from polysketch_tools.gguf import Gguf
from polysketch_tools.sentencepiece_model import BPE, Piece, PieceType, SentencePieceModel, serialize
from polysketch_tools.tokenizer_json import added_token, begin_with, sequence

# ggml's types of tokens.
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)
_MAX_SCORE = (2 - 2**-23) * 2.0**127  # the largest float32, which SentencePiece's scores are

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"


def _split(pattern: str) -> dict:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _steps(*patterns: str) -> list[dict]:
    """Divides at each pattern in turn."""
    return [*map(_split, patterns), _byte_level(use_regex=False)]


def _byte_level(use_regex: bool) -> dict:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


_DIGITS = [{"type": "Digits", "individual_digits": True}, _byte_level(use_regex=True)]

# By tokenizer.ggml.pre: the pre-tokenizers.
_PRE_TOKENIZERS = {
    "smollm": _DIGITS,
    "starcoder": _DIGITS,
    "refact": _DIGITS,
    "gpt-2": [_byte_level(use_regex=True)],
    "llama-bpe": _steps(_LLAMA3),
    "qwen2": _steps(_QWEN2),
    # What llama.cpp does with a file that names none.
    "default": _steps(r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
}
_NORMALIZERS = {"qwen2": {"type": "NFC"}}
# Those whose words become a token of the vocabulary even where no merges lead to it.
_IGNORE_MERGES = {"llama-bpe"}
# Those whose texts begin with BOS unless the file says otherwise.
_ADD_BOS = {"llama-bpe"}

CHAT_TEMPLATE = "tokenizer.chat_template"


class Tokenizer:
    """What both kinds have. Raises ToolError for a tokenizer that is not converted. vocab_size: of the model."""

    types = (_NORMAL, _CONTROL, _USER_DEFINED, _UNUSED)  # of tokens, which the kind may have
    default_ids: dict[str, int] = {}  # of tokens that a file does not name

    def __init__(self, file: Gguf, vocab_size: int, *, add_bos: bool):
        self._file = file
        self._tokens = file.texts("tokenizer.ggml.tokens")
        if not 0 < len(self._tokens) <= vocab_size:
            raise file.error(f"field tokenizer.ggml.tokens: expected 1 to {vocab_size}, found {len(self._tokens)}")
        if len(set(self._tokens)) != len(self._tokens):
            raise file.error("field tokenizer.ggml.tokens: expected each text once")
        self._types = self._of_tokens("token_type", [_NORMAL] * len(self._tokens))
        for token, one in zip(self._tokens, self._types):
            if one not in self.types:
                raise file.error(f"field tokenizer.ggml.token_type: expected no type {one!r:.20} (of token {token!r:.60})")
        self._bos = self._id("bos")
        self.add_bos = file.field("tokenizer.ggml.add_bos_token", bool, add_bos)
        if self.add_bos and self._bos is None:
            raise file.error("field tokenizer.ggml.bos_token_id: missing, though texts begin with BOS")

    def _of_tokens(self, name: str, otherwise: list | None = None) -> list:
        """A field with a value for each token."""
        values = self._file.field(f"tokenizer.ggml.{name}", list, otherwise)
        if len(values) != len(self._tokens):
            raise self._file.error(f"field tokenizer.ggml.{name}: expected {len(self._tokens)}, found {len(values)}")
        return values

    def _id(self, name: str) -> int | None:
        key = f"tokenizer.ggml.{name}_token_id"
        if key not in self._file.metadata and name not in self.default_ids:
            return None
        found = self._file.field(key, int, self.default_ids.get(name))
        if not 0 <= found < len(self._tokens):
            raise self._file.error(f"field {key}: expected a token's id below {len(self._tokens)}, found {found}")
        if self._types[found] == _UNUSED:  # which tokenizer.json does not have
            if name == "padding":
                return None
            raise self._file.error(f"field {key}: expected a token that is used, found {found}: {self._tokens[found]!r:.60}")
        return found

    def ids(self) -> dict[str, int | list[int]]:
        """The ids that config.json and generation_config.json name."""
        ends = [i for i in (self._id("eos"), self._id("eot")) if i is not None]
        ids = {"bos_token_id": self._bos, "pad_token_id": self._id("padding")}
        if ends:
            ids["eos_token_id"] = ends[0] if len(set(ends)) == 1 else sorted(set(ends))
        return {name: i for name, i in ids.items() if i is not None}

    def chat_template(self) -> str | None:
        return self._file.field(CHAT_TEMPLATE, str) if CHAT_TEMPLATE in self._file.metadata else None


class ByteLevel(Tokenizer):
    """BPE of bytes with merges."""

    def __init__(self, file: Gguf, vocab_size: int):
        self._pre = file.field("tokenizer.ggml.pre", str, "default")
        if self._pre not in _PRE_TOKENIZERS:
            known = ", ".join(_PRE_TOKENIZERS)
            raise file.error(f"field tokenizer.ggml.pre: expected one of {known}, found {self._pre!r:.60}")
        super().__init__(file, vocab_size, add_bos=self._pre in _ADD_BOS)

    def config(self) -> dict:
        """The content of tokenizer_config.json."""
        names = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad"}
        ids = {short: self._id(name) for name, short in names.items()}
        return {
            "add_bos_token": self.add_bos,
            "add_prefix_space": False,
            "clean_up_tokenization_spaces": False,
            "tokenizer_class": "PreTrainedTokenizerFast",
            **{f"{short}_token": self._tokens[i] for short, i in ids.items() if i is not None},
        }

    def json(self) -> dict:
        """The content of tokenizer.json."""
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [
                added_token(i, token, special=kind == _CONTROL)
                for i, (token, kind) in enumerate(zip(self._tokens, self._types))
                if kind in (_CONTROL, _USER_DEFINED)
            ],
            "normalizer": _NORMALIZERS.get(self._pre),
            "pre_tokenizer": sequence("pretokenizers", _PRE_TOKENIZERS[self._pre]),
            "post_processor": begin_with(self._tokens[self._bos], self._bos) if self.add_bos else None,
            "decoder": _byte_level(use_regex=True),
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": False,
                "ignore_merges": self._pre in _IGNORE_MERGES,
                "vocab": {
                    token: i for i, (token, kind) in enumerate(zip(self._tokens, self._types)) if kind != _UNUSED
                },
                "merges": self._merges(),
            },
        }

    def _merges(self) -> list[str]:
        known = set(self._tokens)
        merges = self._file.texts("tokenizer.ggml.merges")
        for i, merge in enumerate(merges):
            parts = merge.split(" ")
            if len(parts) != 2 or not {*parts, "".join(parts)} <= known:
                raise self._file.error(f"field tokenizer.ggml.merges: expected two tokens that make one, found {merge!r:.60}")
        return merges


class SentencePiece(Tokenizer):
    """BPE of characters, whose pairs merge by the scores of what they make, as SentencePiece and llama.cpp do."""

    types = (_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE)
    default_ids = {"unknown": 0, "bos": 1, "eos": 2}  # llama.cpp's

    def __init__(self, file: Gguf, vocab_size: int):
        super().__init__(file, vocab_size, add_bos=True)
        if file.field("tokenizer.ggml.add_eos_token", bool, False):
            raise file.error("field tokenizer.ggml.add_eos_token: not supported")
        scores = self._of_tokens("scores")
        if not all(isinstance(score, float) and abs(score) <= _MAX_SCORE for score in scores):
            raise file.error("field tokenizer.ggml.scores: expected finite numbers of float32")
        pieces = [Piece(*piece) for piece in zip(self._tokens, scores, map(PieceType, self._types))]
        while pieces[-1].type == PieceType.UNUSED:  # rows of the embedding without a token
            pieces.pop()
        self._model = SentencePieceModel(
            pieces,
            model_type=BPE,
            unk_id=self._id("unknown"),
            bos_id=self._bos,
            eos_id=self._id("eos"),
            pad_id=-1 if self._id("padding") is None else self._id("padding"),
            byte_fallback=_BYTE in self._types,
            add_dummy_prefix=file.field("tokenizer.ggml.add_space_prefix", bool, True),
            remove_extra_whitespaces=False,
        )
        self._check()

    def _check(self) -> None:
        """Checks what decides the ids of a text."""
        pieces, file = self._model.pieces, self._file
        for name, i, kind in (("unknown", self._model.unk_id, PieceType.UNKNOWN), ("bos", self._bos, PieceType.CONTROL)):
            if i >= len(pieces) or pieces[i].type != kind:
                raise file.error(f"field tokenizer.ggml.{name}_token_id: expected a token of type {kind.value}, found {i}")
        if len(self._model.of_type(PieceType.UNKNOWN)) != 1:
            raise file.error("field tokenizer.ggml.token_type: expected one unknown token")
        if self._model.byte_fallback and set(self._model.of_type(PieceType.BYTE)) != {f"<0x{i:02X}>" for i in range(256)}:
            raise file.error("field tokenizer.ggml.token_type: expected no byte token, or <0x00> to <0xFF>")
        if "" in self._tokens:
            raise file.error("field tokenizer.ggml.tokens: expected no empty text")
        merged: dict[float, str] = {}
        for piece in pieces:
            if piece.type != PieceType.NORMAL or len(piece.text) == 1:
                continue
            if (other := merged.setdefault(piece.score, piece.text)) != piece.text:
                raise file.error(f"field tokenizer.ggml.scores: expected others for {other!r:.60} and {piece.text!r:.60}")

    def config(self) -> dict:
        """The content of tokenizer_config.json."""
        return hugging_face.tokenizer_config(self._model, self.add_bos)

    def json(self) -> dict:
        """The content of tokenizer.json."""
        try:
            return hugging_face.tokenizer_json(self._model, serialize(self._model), self.add_bos)
        except hugging_face.NotRepresentable as error:
            raise self._file.error(f"tokenizer: {error}") from error


# By tokenizer.ggml.model.
_KINDS = {"gpt2": ByteLevel, "llama": SentencePiece}


def read(file: Gguf, vocab_size: int) -> ByteLevel | SentencePiece:
    """Raises ToolError for a tokenizer that is not converted. vocab_size: of the model."""
    kind = file.field("tokenizer.ggml.model", str)
    if kind not in _KINDS:
        raise file.error(f"field tokenizer.ggml.model: expected one of {', '.join(_KINDS)}, found {kind!r:.60}")
    return _KINDS[kind](file, vocab_size)
