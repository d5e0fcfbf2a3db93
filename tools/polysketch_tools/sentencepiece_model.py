"""Reads and writes the parts of a SentencePiece model file that the sentencepiece package does not show: types and normalisation."""

import dataclasses
import enum
import struct
from collections.abc import Iterator

from polysketch_tools.errors import ToolError


class PieceType(enum.IntEnum):
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


UNIGRAM, BPE = 1, 2  # model_type of the TrainerSpec


@dataclasses.dataclass
class Piece:
    text: str = ""
    score: float = 0.0
    type: PieceType = PieceType.NORMAL


@dataclasses.dataclass
class SentencePieceModel:
    """A ModelProto of sentencepiece_model.proto, with the defaults of its fields."""

    pieces: list[Piece]
    model_type: int = UNIGRAM
    unk_id: int = 0
    bos_id: int = 1
    eos_id: int = 2
    pad_id: int = -1
    byte_fallback: bool = False
    whitespace_as_suffix: bool = False
    charsmap: bytes = b""
    add_dummy_prefix: bool = True
    remove_extra_whitespaces: bool = True
    escape_whitespaces: bool = True

    def of_type(self, *types: PieceType) -> list[str]:
        return [piece.text for piece in self.pieces if piece.type in types]


# Field numbers of TrainerSpec and NormalizerSpec.
_TRAINER = {
    3: "model_type",
    24: "whitespace_as_suffix",
    35: "byte_fallback",
    40: "unk_id",
    41: "bos_id",
    42: "eos_id",
    43: "pad_id",
}
_NORMALIZER = {
    2: "charsmap",
    3: "add_dummy_prefix",
    4: "remove_extra_whitespaces",
    5: "escape_whitespaces",
}


def parse(data: bytes) -> SentencePieceModel:
    """Parses tokenizer.model. ToolError for bytes that are not one."""
    model = SentencePieceModel(pieces=[])
    try:
        for number, value in _fields(data):
            if number == 1:
                model.pieces.append(_piece(value))
            elif number in (2, 3):
                _set_fields(model, _TRAINER if number == 2 else _NORMALIZER, value)
    except (ValueError, TypeError, IndexError, struct.error) as error:
        raise ToolError(f"expected a SentencePiece model, found damage: {error}") from error
    return model


def _piece(data: bytes) -> Piece:
    piece = Piece()
    for number, value in _fields(data):
        if number == 1:
            piece.text = value.decode()
        elif number == 2:
            (piece.score,) = struct.unpack("<f", value)
        elif number == 3:
            piece.type = PieceType(value)
    return piece


def _set_fields(model: SentencePieceModel, names: dict[int, str], data: bytes) -> None:
    for number, value in _fields(data):
        if number in names:
            kind = type(getattr(model, names[number]))
            # An int32 below zero has 64 bits on the wire.
            signed = value - (1 << 64) if kind is int and value >> 63 else value
            setattr(model, names[number], kind(signed))


def serialize(model: SentencePieceModel) -> bytes:
    """Returns the bytes of tokenizer.model, which the sentencepiece package reads."""
    parts = []
    for piece in model.pieces:
        score = _key(2, 5) + struct.pack("<f", piece.score)
        parts.append(_bytes_field(1, _bytes_field(1, piece.text.encode()) + score + _key(3, 0) + _packed(piece.type)))
    for number, names in ((2, _TRAINER), (3, _NORMALIZER)):
        parts.append(_bytes_field(number, b"".join(_named_field(model, key, name) for key, name in names.items())))
    return b"".join(parts)


def _named_field(model: SentencePieceModel, number: int, name: str) -> bytes:
    value = getattr(model, name)
    return _bytes_field(number, value) if isinstance(value, bytes) else _key(number, 0) + _packed(int(value) % (1 << 64))


def _bytes_field(number: int, value: bytes) -> bytes:
    return _key(number, 2) + _packed(len(value)) + value


def _key(number: int, wire_type: int) -> bytes:
    return _packed(number << 3 | wire_type)


def _packed(value: int) -> bytes:
    """A varint."""
    digits = []
    while value >= 0x80:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*digits, value])


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yields number and value of each field of a protobuf message: an int of a varint, otherwise bytes."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        if tag & 7 == 0:
            value, at = _varint(data, at)
            yield tag >> 3, value
            continue
        if tag & 7 == 2:
            size, at = _varint(data, at)
        elif tag & 7 in (1, 5):
            size = 8 if tag & 7 == 1 else 4
        else:
            raise ValueError(f"wire type {tag & 7}")
        if at + size > len(data):
            raise ValueError(f"a field of {size} bytes, {len(data) - at} are left")
        yield tag >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
    raise ValueError("a number of more than ten bytes")
