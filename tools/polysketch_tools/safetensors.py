"""Safetensors files: a writer that streams parts of tensors, and a small reader."""

import json
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
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


class Writer:
    """Writes the declared tensors, in their order, from chunks of any size."""

    def __init__(self, path: pathlib.Path, tensors: dict[str, tuple[np.dtype, tuple[int, ...]]]):
        header = {"__metadata__": {"format": "polysketch"}}
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


def read(paths: Iterable[pathlib.Path]) -> dict[str, np.ndarray]:
    """Reads all tensors of files that these tools wrote (no validation beyond numpy's; the server's reader is strict)."""
    tensors = {}
    for path in paths:
        data = path.read_bytes()
        (length,) = struct.unpack_from("<Q", data)
        for name, entry in json.loads(data[8 : 8 + length]).items():
            if name == "__metadata__":
                continue
            if entry["dtype"] not in DTYPES:
                raise ToolError(f"{path}: tensor {name}: dtype {entry['dtype']} is not read here")
            begin, end = entry["data_offsets"]
            raw = data[8 + length + begin : 8 + length + end]
            tensors[name] = np.frombuffer(raw, DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return tensors
