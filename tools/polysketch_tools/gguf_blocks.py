"""The block formats of GGUF as float32, with the operations of ggml's reference in its order: the same bits."""

import dataclasses
from collections.abc import Callable

import numpy as np


@dataclasses.dataclass(frozen=True)
class Form:
    """A block format: `values` values in `bytes` bytes."""

    name: str
    values: int
    bytes: int
    # Blocks [n, bytes] to float32 [n, values].
    dequantize: Callable[[np.ndarray], np.ndarray]


def _halves(blocks: np.ndarray, at: int) -> np.ndarray:
    """The float16 at byte `at` of each block, as float32 [n, 1]."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2").astype(np.float32)


def _nibbles(packed: np.ndarray) -> np.ndarray:
    """The low halves of the bytes [n, m], then the high halves: [n, 2 m]."""
    return np.concatenate((packed & 15, packed >> 4), axis=1)


def _f32(blocks: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(blocks).view("<f4").astype(np.float32)


def _f16(blocks: np.ndarray) -> np.ndarray:
    return _halves(blocks, 0)


def _bf16(blocks: np.ndarray) -> np.ndarray:
    return (np.ascontiguousarray(blocks).view("<u2").astype(np.uint32) << 16).view(np.float32)


def _q8_0(blocks: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(blocks[:, 2:]).view(np.int8).astype(np.float32) * _halves(blocks, 0)


def _q4_0(blocks: np.ndarray) -> np.ndarray:
    values = _nibbles(blocks[:, 2:]).astype(np.int8) - np.int8(8)
    return values.astype(np.float32) * _halves(blocks, 0)


def _q4_1(blocks: np.ndarray) -> np.ndarray:
    return _nibbles(blocks[:, 4:]).astype(np.float32) * _halves(blocks, 0) + _halves(blocks, 2)


def _q4_k(blocks: np.ndarray) -> np.ndarray:
    # 8 groups of 32 values. Scales and minima of 6 bits: four of each in the low bits of bytes 0 to 7; the others in bytes 8
    # to 11, their upper bits on top of the first.
    n = len(blocks)
    packed = blocks[:, 4:16]
    low, middle, high = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scale = np.concatenate((low & 63, (high & 15) | (low >> 6 << 4)), axis=1)
    minimum = np.concatenate((middle & 63, (high >> 4) | (middle >> 6 << 4)), axis=1)
    d = _halves(blocks, 0) * scale.astype(np.float32)
    m = _halves(blocks, 2) * minimum.astype(np.float32)
    packed = blocks[:, 16:].reshape(n, 4, 32)
    values = np.stack((packed & 15, packed >> 4), axis=2).reshape(n, 8, 32).astype(np.float32)
    return (d[:, :, None] * values - m[:, :, None]).reshape(n, 256)


def _q6_k(blocks: np.ndarray) -> np.ndarray:
    # Two halves of 128 values: low four bits in 64 bytes, upper two in 32; a scale of 8 bits for each 16 values.
    n = len(blocks)
    low = blocks[:, :128].reshape(n, 2, 64)
    low = np.concatenate((low & 15, low >> 4), axis=2)
    high = blocks[:, 128:192].reshape(n, 2, 32)
    high = np.concatenate([high >> shift & 3 for shift in (0, 2, 4, 6)], axis=2)
    values = (low | high << 4).astype(np.int8) - np.int8(32)
    scale = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8).astype(np.float32)
    d = _halves(blocks, 208) * scale
    return (d[:, :, None] * values.reshape(n, 16, 16).astype(np.float32)).reshape(n, 256)


# By ggml's id of the type.
FORMS = {
    0: Form("F32", 1, 4, _f32),
    1: Form("F16", 1, 2, _f16),
    2: Form("Q4_0", 32, 18, _q4_0),
    3: Form("Q4_1", 32, 20, _q4_1),
    8: Form("Q8_0", 32, 34, _q8_0),
    12: Form("Q4_K", 256, 144, _q4_k),
    14: Form("Q6_K", 256, 210, _q6_k),
    30: Form("BF16", 1, 2, _bf16),
}

# Formats that are not read.
_OTHERS = {6: "Q5_0", 7: "Q5_1", 10: "Q2_K", 11: "Q3_K", 13: "Q5_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS",
           19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0"}  # fmt: skip


def name_of(kind: int) -> str:
    return _OTHERS.get(kind, f"type {kind}")
