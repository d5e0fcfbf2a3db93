"""Makes tokenizer.json and tokenizer_config.json of Hugging Face from a SentencePiece model.

Texts get the ids that SentencePiece gives them. The spelling of a control piece in a text becomes the control id, as
transformers does; the text after it then has no dummy prefix.
"""

import base64
import json
import pathlib
import shutil
import sys

from polysketch_tools.errors import ToolError
from polysketch_tools.model_config import ModelConfig, read_json_object
from polysketch_tools.sentencepiece_model import (
    BPE,
    UNIGRAM,
    Piece,
    PieceType,
    SentencePieceModel,
    parse,
)
from polysketch_tools.tokenizer_json import added_token, begin_with, sequence

_MARKER = "\u2581"  # represents a space in pieces

TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"

# Fields of a tokenizer_config.json beside tokenizer.model that are kept; the others describe another tokenizer.json.
_KEPT = ("chat_template", "bos_token", "eos_token", "pad_token", "unk_token")

# After a model: in its NormalizerSpec, add_dummy_prefix and remove_extra_whitespaces become false.
_TEXT_ALONE = b"\x1a\4\x18\0\x20\0"


class NotRepresentable(Exception):
    """A SentencePiece model whose ids a tokenizer.json cannot give. The message says why."""


def write_files(folder: pathlib.Path, tokenizer: pathlib.Path, config: ModelConfig) -> None:
    """Writes both files of the SentencePiece model `tokenizer` to `folder`. config: as apply_tokenizer has completed it.

    A tokenizer_config.json beside `tokenizer` is taken into account. A model that tokenizer.json cannot represent is a line on
    stderr, and the files beside it are copied as they are.
    """
    data, beside = tokenizer.read_bytes(), tokenizer.parent / CONFIG_FILE
    try:
        model = parse(data)
    except ToolError as error:
        raise ToolError(f"{tokenizer}: {error}") from error
    try:
        content = tokenizer_json(model, data, config.add_bos)
    except NotRepresentable as error:
        print(f"no {TOKENIZER_FILE} is written: {error}", file=sys.stderr)
        if beside.is_file():
            shutil.copyfile(beside, folder / CONFIG_FILE)
        return
    kept = _kept_fields(beside, model) if beside.is_file() else {}
    _write_json(folder / TOKENIZER_FILE, content, indent=None)
    _write_json(folder / CONFIG_FILE, tokenizer_config(model, config.add_bos) | kept, indent=1)


def _write_json(path: pathlib.Path, value: dict, indent: int | None) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=indent) + "\n", encoding="utf-8")


def _kept_fields(path: pathlib.Path, model: SentencePieceModel) -> dict:
    fields = {name: value for name, value in read_json_object(path).items() if name in _KEPT}
    pieces = {piece.text for piece in model.pieces}
    for name in fields.keys() - {"chat_template"}:
        value = fields[name]
        text = value.get("content") if isinstance(value, dict) else value
        # transformers would give a new id to another text, beyond the vocabulary.
        if text is not None and text not in pieces:
            raise ToolError(f'{path}: field "{name}": expected a piece of tokenizer.model, found {text!r}')
        fields[name] = text
    return fields


def tokenizer_config(model: SentencePieceModel, add_bos: bool) -> dict:
    """Returns the content of tokenizer_config.json."""
    ids = {"bos": model.bos_id, "eos": model.eos_id, "unk": model.unk_id, "pad": model.pad_id}
    tokens = {
        f"{name}_token": model.pieces[i].text
        for name, i in ids.items()
        if 0 <= i < len(model.pieces)
    }
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **tokens,
        "add_bos_token": add_bos,
        "add_eos_token": False,
        "clean_up_tokenization_spaces": False,
    }


def tokenizer_json(model: SentencePieceModel, data: bytes, add_bos: bool) -> dict:
    """Returns the content of tokenizer.json. data: the bytes of `model`. Raises NotRepresentable."""
    _check(model, data)
    symbols = model.of_type(PieceType.USER_DEFINED)
    long_symbols = [symbol for symbol in symbols if len(symbol) > 1]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            added_token(i, piece.text, special=True)
            for i, piece in enumerate(model.pieces)
            if piece.type in (PieceType.CONTROL, PieceType.UNKNOWN)
        ],
        "normalizer": sequence("normalizers", _normalizers(model)),
        "pre_tokenizer": sequence(
            "pretokenizers", _pre_tokenizers(model, symbols if long_symbols else [])
        ),
        "post_processor": begin_with(model.pieces[model.bos_id].text, model.bos_id) if add_bos else None,
        "decoder": sequence("decoders", _decoders(model)),
        "model": _bpe(model, bool(long_symbols)) if model.model_type == BPE else _unigram(model),
    }


def _check(model: SentencePieceModel, data: bytes) -> None:
    """Raises NotRepresentable for a model that the tokenizers library cannot follow."""
    if model.model_type not in (BPE, UNIGRAM):
        raise NotRepresentable(f"expected a BPE or unigram model, found model_type {model.model_type}")
    if model.whitespace_as_suffix or not model.escape_whitespaces:
        raise NotRepresentable("expected the marker of a space before a word, found another setting")
    if unused := model.of_type(PieceType.UNUSED):
        raise NotRepresentable(f"expected no unused pieces, found {unused[0]!r}")
    texts = {piece.text for piece in model.pieces}
    for piece in model.of_type(PieceType.NORMAL):
        if missing := [char for char in piece if char not in texts]:
            raise NotRepresentable(f"piece {piece!r}: expected each character to be a piece, {missing[0]!r} is not")
    if PieceType.NORMAL not in {piece.type for piece in model.pieces}:
        raise NotRepresentable("expected normal pieces, found none")
    symbols = model.of_type(PieceType.USER_DEFINED)
    if model.charsmap:
        _check_unchanged(symbols, data)
    if model.model_type == BPE and any(len(symbol) > 1 for symbol in symbols):
        _check_reached(model, data)


def _check_unchanged(symbols: list[str], data: bytes) -> None:
    # SentencePiece does not normalise user-defined pieces.
    import sentencepiece  # .venv-models has none

    normalizer = sentencepiece.SentencePieceNormalizer(model_proto=data + _TEXT_ALONE)
    for symbol in symbols:
        if (found := normalizer.normalize(symbol)) != symbol:
            raise NotRepresentable(
                f"user-defined piece {symbol!r}: expected one that the normalisation does not change, found {found!r}"
            )


def _check_reached(model: SentencePieceModel, data: bytes) -> None:
    # With ignore_merges, which user-defined pieces need, a text that is a piece becomes it without merges.
    import sentencepiece  # .venv-models has none

    processor = sentencepiece.SentencePieceProcessor(model_proto=data + _TEXT_ALONE)
    for i, piece in enumerate(model.pieces):
        if piece.type == PieceType.NORMAL and processor.encode(piece.text) != [i]:
            raise NotRepresentable(
                f"user-defined pieces of several characters beside piece {piece.text!r}, to which no merges lead"
            )


def _replace(pattern: dict, content: str) -> dict:
    return {"type": "Replace", "pattern": pattern, "content": content}


def _normalizers(model: SentencePieceModel) -> list[dict]:
    steps = []
    if model.charsmap:
        encoded = base64.b64encode(model.charsmap).decode()
        steps.append({"type": "Precompiled", "precompiled_charsmap": encoded})
    if model.remove_extra_whitespaces:
        # With a dummy prefix one space at the start stays: it is the prefix.
        steps.append(_replace({"Regex": r" +\z" if model.add_dummy_prefix else r"\A +| +\z"}, ""))
        steps.append(_replace({"Regex": " {2,}"}, " "))
    else:
        steps.append(_replace({"String": " "}, _MARKER))
    return steps


def _pre_tokenizers(model: SentencePieceModel, symbols: list[str]) -> list[dict]:
    steps = []
    # Metaspace prepends its replacement to a text that does not begin with it. A normalised text that keeps its spaces begins
    # with the marker: the first step prepends a space even to it, and the second makes the marker of each space.
    if model.add_dummy_prefix:
        steps.append(_metaspace(" ", "first"))
    steps.append(_metaspace(_MARKER, "never"))
    if symbols:
        pattern = "|".join(_escaped(s) for s in sorted(symbols, key=len, reverse=True))
        steps.append(_split(pattern, "Isolated"))
    if model.model_type == UNIGRAM and model.byte_fallback:
        # The library would take the text "<0x0A>" for the byte piece. It is divided after its first character.
        steps.append(_split("<(?=0x[0-9A-F]{2}>)", "MergedWithPrevious"))
    return steps


def _metaspace(replacement: str, scheme: str) -> dict:
    fields = {"replacement": replacement, "prepend_scheme": scheme, "split": False}
    return {"type": "Metaspace", **fields}


def _split(pattern: str, behavior: str) -> dict:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": False}


def _escaped(text: str) -> str:
    return "".join(c if c.isalnum() or not c.isascii() else f"\\x{ord(c):02X}" for c in text)


def _decoders(model: SentencePieceModel) -> list[dict]:
    steps = [_replace({"String": _MARKER}, " ")]
    if model.byte_fallback:
        steps.append({"type": "ByteFallback"})
    steps.append({"type": "Fuse"})
    if model.add_dummy_prefix or model.remove_extra_whitespaces:
        steps.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return steps


def _unigram(model: SentencePieceModel) -> dict:
    # The cost of an unknown character follows from the lowest score, in SentencePiece from that of the normal pieces.
    lowest = min(piece.score for piece in model.pieces if piece.type == PieceType.NORMAL)

    def score(piece: Piece) -> float:
        if piece.type == PieceType.USER_DEFINED:
            return 0.0
        return piece.score if piece.type == PieceType.NORMAL else lowest

    return {
        "type": "Unigram",
        "unk_id": model.unk_id,
        "vocab": [[piece.text, score(piece)] for piece in model.pieces],
        "byte_fallback": model.byte_fallback,
    }


def _bpe(model: SentencePieceModel, ignore_merges: bool) -> dict:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": model.pieces[model.unk_id].text,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": True,
        "byte_fallback": model.byte_fallback,
        "ignore_merges": ignore_merges,
        "vocab": {piece.text: i for i, piece in enumerate(model.pieces)},
        "merges": _merges(model),
    }


def _merges(model: SentencePieceModel) -> list[list[str]]:
    """Returns the pairs of pieces that spell a piece; those of the piece of the highest score, which merges first, lead."""
    normal = [piece for piece in model.pieces if piece.type == PieceType.NORMAL]
    texts = {piece.text for piece in normal}
    return [
        [piece.text[:i], piece.text[i:]]
        for piece in sorted(normal, key=lambda piece: -piece.score)
        for i in range(1, len(piece.text))
        if piece.text[:i] in texts and piece.text[i:] in texts
    ]
