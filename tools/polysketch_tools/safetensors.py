"""Safetensors files: a writer that streams parts of tensors, and a reader."""

import dataclasses
import json
import math
import operator
import pathlib
import struct
from collections.abc import Iterable

import ml_dtypes
import numpy as np

from polysketch_tools.errors import ToolError

DTYPES = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I32": np.dtype(np.int32),
    "I8": np.dtype(np.int8),
    "U8": np.dtype(np.uint8),
}
# The limit of the specification.
MAX_HEADER_BYTES = 100_000_000

FORM = "polysketch"  # `format` of the metadata, unless a file is for transformers, which asks for "pt"

_NAMES = {dtype: name for name, dtype in DTYPES.items()}


class Writer:
    """Writes the declared tensors, in their order, from chunks of any size."""

    def __init__(
        self,
        path: pathlib.Path,
        tensors: dict[str, tuple[np.dtype, tuple[int, ...]]],
        form: str = FORM,
    ):
        header = {"__metadata__": {"format": form}}
        offset = 0
        self._pending = []  # (name, dtype, bytes left)
        for name, (dtype, shape) in tensors.items():
            size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
            header[name] = {
                "dtype": _NAMES[dtype],
                "shape": list(shape),
                "data_offsets": [offset, offset + size],
            }
            self._pending.append([name, dtype, size])
            offset += size
        self._pending.reverse()
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-(8 + len(text)) % 64)  # data begins on a cache line
        self._file = open(path, "wb")
        self._file.write(struct.pack("<Q", len(text)) + text)

    def write(self, name: str, chunk: np.ndarray) -> int:
        """Writes the next values of tensor `name`, row-major, converted to its dtype. Returns the bytes written."""
        current = self._pending[-1]
        assert current[0] == name, f"expected values of {current[0]}, got {name}"
        data = np.ascontiguousarray(chunk, dtype=current[1]).tobytes()
        current[2] -= len(data)
        assert current[2] >= 0, f"too many values for {name}"
        self._file.write(data)
        if current[2] == 0:
            self._pending.pop()
        return len(data)

    def close(self) -> None:
        assert not self._pending, f"values of {self._pending[-1][0]} are missing"
        self._file.close()


def write(path: pathlib.Path, tensors: dict[str, np.ndarray]) -> None:
    """Writes a whole file at once."""
    writer = Writer(path, {name: (array.dtype, array.shape) for name, array in tensors.items()})
    for name, array in tensors.items():
        writer.write(name, array)
    writer.close()


@dataclasses.dataclass(frozen=True)
class Entry:
    """A tensor of a file: its type as the format names it, and the place of its bytes."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    size: int


def read_header(path: pathlib.Path) -> dict[str, Entry]:
    """Returns the tensors of a file by name. ToolError unless every tensor lies within the file and has the size of its shape."""
    file_size = path.stat().st_size
    try:
        with open(path, "rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > min(MAX_HEADER_BYTES, file_size - 8):
                raise ValueError(f"a header of {length} bytes in a file of {file_size}")
            header = json.loads(file.read(length))
        entries = {
            name: Entry(fields["dtype"], tuple(fields["shape"]), 8 + length + begin, end - begin)
            for name, fields in header.items()
            if name != "__metadata__"
            for begin, end in [map(operator.index, fields["data_offsets"])]
        }
        for name, entry in entries.items():
            _check_entry(name, entry, 8 + length, file_size)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, struct.error) as error:
        raise ToolError(f"{path}: expected a safetensors file, found damage: {error}") from error
    return entries


def _check_entry(name: str, entry: Entry, begin: int, end: int) -> None:
    if not name.isprintable() or not all(type(n) is int and n >= 0 for n in entry.shape):
        raise ValueError("expected names of tensors and their shapes")
    if not begin <= entry.begin <= entry.begin + entry.size <= end:
        raise ValueError(f"tensor {name}: expected bytes within the file, which has {end}")
    if entry.dtype in DTYPES and entry.size != DTYPES[entry.dtype].itemsize * math.prod(entry.shape):
        raise ValueError(f"tensor {name}: expected the size of its shape, found {entry.size} bytes")


def read_tensor(path: pathlib.Path, name: str, entry: Entry) -> np.ndarray:
    if entry.dtype not in DTYPES:
        raise ToolError(
            f"{path}: tensor {name}: expected one of {', '.join(DTYPES)}, found {entry.dtype}"
        )
    count = math.prod(entry.shape)
    return np.fromfile(path, DTYPES[entry.dtype], count, offset=entry.begin).reshape(entry.shape)


def read(paths: Iterable[pathlib.Path]) -> dict[str, np.ndarray]:
    """Reads all tensors of the files."""
    return {
        name: read_tensor(path, name, entry)
        for path in paths
        for name, entry in read_header(path).items()
    }
