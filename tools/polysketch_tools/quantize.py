"""8-bit and 4-bit weights: the same integers that the server computes on load (kernels/quantize.h)."""

import ml_dtypes
import numpy as np

GROUP = 32  # rows that share a scale in q4
LEAST_Q4 = 32 * 1024  # minimum elements of a matrix in 4 bits (engine/model/weight_reader.cc)
_TINY = np.float32(1e-35)
CANDIDATES = (8.0, 7.0, 7.5, 8.5, 9.0, 9.5, 10.0, 10.5, 11.0, 12.0)


def storage(dtype: str, name: str, shape: tuple[int, ...]) -> str:
    """Returns how a folder of `dtype` (F32, BF16, F16, Q8, Q4) stores a tensor: in the format of the server's --weights."""
    if ".attn.gate." in name:
        return "F32"  # small, and its error grows with the distance of two tokens
    if name.endswith(".attn.coefficients"):
        return "F32"  # a few numbers, on which every weight depends
    if dtype not in ("Q8", "Q4"):
        return dtype
    if len(shape) != 2 or not name.endswith(".weight"):
        return "F32"  # vectors and random matrices
    four = name.endswith(
        (".attn.qkv.weight", ".attn.out.weight", ".mlp.up.weight", ".mlp.down.weight")
    )
    large = shape[0] * shape[1] >= LEAST_Q4
    return "Q4" if dtype == "Q4" and four and large else "Q8"


def stored_tensors(
    form: str, name: str, shape: tuple[int, ...]
) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Returns type and shape of the tensors that store `name` in the format `form`."""
    if form == "Q8":
        columns = shape[0] if name == "embedding.weight" else shape[1]
        return {name: ("I8", shape), name + ".scale": ("F32", (columns,))}
    if form == "Q4":
        groups = -(-shape[0] // GROUP)
        return {
            name: ("U8", (groups * GROUP // 2, shape[1])),
            name + ".scale": ("BF16", (groups, shape[1])),
        }
    return {name: (form, shape)}


def quantize(form: str, name: str, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the arrays of the tensors that stored_tensors names: integers and scales."""
    if form == "Q4":
        return _q4(weights)
    if name == "embedding.weight":  # its rows are the columns of the logits' product
        integers, scales = _q8(weights.T)
        return np.ascontiguousarray(integers.T), scales
    return _q8(weights)


def _q8(w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    w = w.astype(np.float32)
    largest = np.abs(w).max(axis=0)
    zero = largest < _TINY
    largest[zero] = 1
    integers = np.rint(w * (np.float32(127) / largest))
    scales = largest / np.float32(127)
    integers[:, zero] = 0
    scales[zero] = 0
    return integers.astype(np.int8), scales


def _q4(w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    rows, cols = w.shape
    groups = -(-rows // GROUP)
    x = np.zeros((groups * GROUP, cols), np.float32)
    x[:rows] = w
    x = x.reshape(groups, GROUP, cols)
    first = np.abs(x).argmax(axis=1)[:, None]
    largest = np.take_along_axis(x, first, axis=1)[:, 0]
    zero = np.abs(largest) < _TINY
    least = np.full((groups, cols), np.inf)
    scales = np.zeros((groups, cols), ml_dtypes.bfloat16)
    for c in CANDIDATES:
        candidate = (-largest / np.float32(c)).astype(ml_dtypes.bfloat16)
        error = _squared_error(x, candidate)
        better = (error < least) & ~zero
        least[better] = error[better]
        scales[better] = candidate[better]
    # Rows that are only padding hold 0 like the rest of a zero group.
    return pack_q4(round_q4(x, scales)), scales


def pack_q4(integers: np.ndarray) -> np.ndarray:
    """Returns the bytes that store integers [groups, GROUP, out] in [-8, 7]."""
    groups, _, cols = integers.shape
    nibbles = (integers + 8).astype(np.uint8)
    packed = nibbles[:, : GROUP // 2] | nibbles[:, GROUP // 2 :] << 4
    return packed.reshape(groups * GROUP // 2, cols)


def dequantize(form: str, integers: np.ndarray, scales: np.ndarray, rows: int) -> np.ndarray:
    """Returns the matrix [rows, out] that the arrays of quantize stand for, as float32."""
    scales = scales.astype(np.float32)
    if form == "Q8":
        return integers.astype(np.float32) * scales
    groups, cols = scales.shape
    pairs = integers.reshape(groups, GROUP // 2, cols)
    nibbles = np.concatenate([pairs & 15, pairs >> 4], axis=1).astype(np.float32)
    return ((nibbles - 8) * scales[:, None]).reshape(groups * GROUP, cols)[:rows]


def round_activations(x: np.ndarray) -> np.ndarray:
    """Returns rows as the server's products with quantised weights read them: 8-bit integers times a scale of the row."""
    largest = np.abs(x).max(axis=1, keepdims=True)
    largest[largest < _TINY] = 1
    return np.rint(x * (np.float32(127) / largest)) * (largest / np.float32(127))


def round_q4(x: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Returns the integers of groups x [groups, GROUP, out] under scales [groups, out]."""
    wide = scales.astype(np.float32)
    inverse = np.zeros_like(wide)
    np.divide(np.float32(1), wide, out=inverse, where=wide != 0)
    return np.clip(np.rint(x * inverse[:, None]), -8, 7)


def _squared_error(x: np.ndarray, scales: np.ndarray) -> np.ndarray:
    wide = scales.astype(np.float64)[:, None]
    off = x.astype(np.float64) - round_q4(x, scales).astype(np.float64) * wide
    error = np.zeros(scales.shape)
    for i in range(GROUP):  # added in order, as in the server
        error += off[:, i] * off[:, i]
    return error
