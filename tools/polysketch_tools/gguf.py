"""GGUF files, versions 2 and 3: their metadata, and their tensors as float32. A file comes from outside: each size is
checked against the file before memory is taken for it."""

import dataclasses
import math
import pathlib
import struct

import numpy as np

from polysketch_tools import gguf_blocks
from polysketch_tools.errors import ToolError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_TENSORS = 1 << 16
_MAX_FIELDS = 1 << 12
_MAX_ARRAY = 1 << 22  # elements; a vocabulary with its merges has half a million
_MAX_NAME_BYTES = 1 << 16  # keys and names of tensors
_MAX_TEXT_BYTES = 64 << 20
_MAX_DIMENSIONS = 4
_MAX_ALIGNMENT = 1 << 20
# The numbers of metadata by the type's id. 7: bool, 8: text, 9: array.
_NUMBERS = {0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 10: "<u8", 11: "<i8", 12: "<f8"}
_BOOL, _TEXT, _ARRAY = 7, 8, 9


@dataclasses.dataclass(frozen=True)
class Tensor:
    """shape: row-major, so the last dimension is that of GGUF's first."""

    form: gguf_blocks.Form
    shape: tuple[int, ...]
    begin: int  # in the file

    @property
    def size(self) -> int:
        return math.prod(self.shape) // self.form.values * self.form.bytes


class Damage(Exception):
    """What is wrong in a file."""


class Gguf:
    """An open file. metadata: by key; arrays of numbers are lists. tensors: by name, in the order of the file."""

    def __init__(self, path: pathlib.Path):
        self.path = path
        self.metadata: dict[str, object] = {}
        self.tensors: dict[str, Tensor] = {}
        with open(path, "rb") as file:
            self._data = np.memmap(file, np.uint8, "r") if path.stat().st_size else np.zeros(0, np.uint8)
        self._at = 0
        try:
            self._read()
        except Damage as error:
            raise ToolError(f"{path}: expected a GGUF file, found damage at byte {self._at}: {error}") from error

    def error(self, *words: object) -> ToolError:
        return ToolError(f"{self.path}: " + "".join(map(str, words)))

    def tensor(self, name: str) -> np.ndarray:
        """The values of a tensor as float32."""
        tensor = self.tensors[name]
        blocks = self._data[tensor.begin : tensor.begin + tensor.size].reshape(-1, tensor.form.bytes)
        return tensor.form.dequantize(blocks).reshape(tensor.shape)

    def field(self, key: str, kind: type | tuple[type, ...], otherwise: object = None):
        """A field of the metadata. otherwise: its value if the file has none; None: it must have one. kind: float takes
        integers too."""
        value = self.metadata.get(key, otherwise)
        if value is None:
            raise self.error(f"field {key}: missing")
        if kind is float and type(value) is int:
            value = float(value)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            name = kind.__name__ if isinstance(kind, type) else " or ".join(k.__name__ for k in kind)
            raise self.error(f"field {key}: expected {name}, found {value!r:.60}")
        return value

    def texts(self, key: str) -> list[str]:
        value = self.field(key, list)
        if not all(isinstance(one, str) for one in value):
            raise self.error(f"field {key}: expected texts")
        return value

    def _take(self, size: int) -> bytes:
        if size > len(self._data) - self._at:
            raise Damage(f"expected {size} bytes more, found {len(self._data) - self._at}")
        taken = self._data[self._at : self._at + size].tobytes()
        self._at += size
        return taken

    def _number(self, kind: str):
        return np.frombuffer(self._take(np.dtype(kind).itemsize), kind)[0].item()

    def _count(self, what: str, most: int) -> int:
        count = self._number("<u8")
        if count > most:
            raise Damage(f"expected at most {most} {what}, found {count}")
        return count

    def _text(self, most: int) -> str:
        size = self._count("bytes of text", most)
        try:
            return self._take(size).decode()
        except UnicodeDecodeError as error:
            raise Damage("expected text in UTF-8") from error

    def _read(self) -> None:
        if self._take(4) != _MAGIC:
            self._at = 0
            raise Damage("the file does not begin with GGUF")
        version = self._number("<u4")
        if version not in _VERSIONS:
            raise Damage(f"expected version 2 or 3 in little-endian order, found {version}")
        tensors = self._count("tensors", _MAX_TENSORS)
        for _ in range(self._count("fields", _MAX_FIELDS)):
            key = self._text(_MAX_NAME_BYTES)
            if key in self.metadata:
                raise Damage(f"expected each key once, found {key!r} again")
            self.metadata[key] = self._value(self._number("<u4"))
        places = [self._place() for _ in range(tensors)]
        alignment = self.metadata.get("general.alignment", 32)
        if type(alignment) is not int or not 0 < alignment <= _MAX_ALIGNMENT:
            raise Damage(f"general.alignment: expected 1 to {_MAX_ALIGNMENT}, found {alignment!r}")
        base = -(-self._at // alignment) * alignment
        for name, form, shape, offset in places:
            tensor = Tensor(form, shape, base + offset)
            if tensor.begin + tensor.size > len(self._data):
                raise Damage(f"tensor {name}: expected an end within the file of {len(self._data)} bytes")
            if name in self.tensors:
                raise Damage(f"expected each tensor once, found {name!r} again")
            self.tensors[name] = tensor

    def _value(self, kind: int):
        if kind in _NUMBERS:
            return self._number(_NUMBERS[kind])
        if kind == _BOOL:
            return self._number("<u1") != 0
        if kind == _TEXT:
            return self._text(_MAX_TEXT_BYTES)
        if kind != _ARRAY:
            raise Damage(f"expected a type of a value, found {kind}")
        kind = self._number("<u4")
        count = self._count("elements of an array", _MAX_ARRAY)
        if kind in _NUMBERS:
            return np.frombuffer(self._take(count * np.dtype(_NUMBERS[kind]).itemsize), _NUMBERS[kind]).tolist()
        if kind == _BOOL:
            return [byte != 0 for byte in self._take(count)]
        if kind != _TEXT:
            raise Damage(f"expected an array of numbers or texts, found type {kind}")
        return [self._text(_MAX_NAME_BYTES) for _ in range(count)]

    def _place(self) -> tuple[str, gguf_blocks.Form, tuple[int, ...], int]:
        name = self._text(_MAX_NAME_BYTES)
        dimensions = self._number("<u4")
        if not 0 < dimensions <= _MAX_DIMENSIONS or not name.isprintable():
            raise Damage(f"tensor {name!r:.60}: expected 1 to {_MAX_DIMENSIONS} dimensions, found {dimensions}")
        shape = struct.unpack(f"<{dimensions}Q", self._take(8 * dimensions))
        kind = self._number("<u4")
        form = gguf_blocks.FORMS.get(kind)
        if form is None:
            known = ", ".join(form.name for form in gguf_blocks.FORMS.values())
            raise self.error(f"tensor {name}: expected one of {known}, found {gguf_blocks.name_of(kind)}")
        if shape[0] % form.values != 0:
            raise Damage(f"tensor {name}: expected rows of a multiple of {form.values} values, found {shape[0]}")
        return name, form, shape[::-1], self._number("<u8")
