"""libpolysketch-attention.so by ctypes. kernels/cuda/training/polysketch_attention.h describes the functions and fields."""

import ctypes
import dataclasses
import functools
import os

VERSION = 5
BF16, F32, F16 = 0, 1, 2


class AttentionError(Exception):
    """A call that the library refused, or a CUDA error."""


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("type", ctypes.c_int32),
        ("batch_stride", ctypes.c_int64),
        ("head_stride", ctypes.c_int64),
        ("token_stride", ctypes.c_int64),
    ]


class Arrays(ctypes.Structure):
    _fields_ = [
        *((name, Tensor) for name in ("near_q", "near_k", "far_q", "far_k", "v")),
        ("log_decay", ctypes.c_void_p),
    ]


class Shape(ctypes.Structure):
    _fields_ = [
        ("batch", ctypes.c_int64),
        ("heads", ctypes.c_int64),
        ("tokens", ctypes.c_int64),
        ("head_dim", ctypes.c_int32),
        ("near_dim", ctypes.c_int32),
        ("sketch_dim", ctypes.c_int32),
        ("near_power", ctypes.c_int32),
        ("block", ctypes.c_int32),
        ("stabilizer", ctypes.c_float),
        ("input_type", ctypes.c_int32),
        ("chunk", ctypes.c_int32),
        ("decay_gate", ctypes.c_int32),
        ("far_power", ctypes.c_int32),
    ]


@dataclasses.dataclass
class Workspace:
    """Sizes in bytes of the workspaces that calls need, at an address that is a multiple of 256."""

    forward: int
    backward: int


class Library:
    def __init__(self, path: str):
        self._library = ctypes.CDLL(path)
        self._library.polysketch_attention_error.restype = ctypes.c_char_p
        pointer, size = ctypes.c_void_p, ctypes.c_size_t
        shape, arrays, tensor = (ctypes.POINTER(kind) for kind in (Shape, Arrays, Tensor))
        end = [pointer, size, pointer]
        self._library.polysketch_attention_forward.argtypes = [
            *(shape, arrays, pointer, tensor, pointer, pointer),
            *end,
        ]
        self._library.polysketch_attention_backward.argtypes = [
            *(shape, arrays, pointer, tensor, pointer, tensor, arrays),
            *end,
        ]
        version = self._library.polysketch_attention_version()
        if version != VERSION:
            raise AttentionError(f"{path}: expected version {VERSION}, found {version}")
        # An emulation on the host takes host memory.
        self.emulated = self._library.polysketch_attention_emulated() == 1

    def workspace(self, shape: Shape) -> Workspace:
        forward, backward = ctypes.c_size_t(), ctypes.c_size_t()
        self._check(
            self._library.polysketch_attention_workspace(
                ctypes.byref(shape), ctypes.byref(forward), ctypes.byref(backward)
            )
        )
        return Workspace(forward.value, backward.value)

    def state_floats(self, shape: Shape) -> int:
        """Returns the number of floats of a head's state."""
        floats = ctypes.c_size_t()
        self._check(
            self._library.polysketch_attention_state(ctypes.byref(shape), ctypes.byref(floats))
        )
        return floats.value

    def forward(self, shape, inputs, out, denominators, workspace, size, stream=0, *, initial=None, final=None):
        """Addresses as integers, tensors and arrays as above; size: of the workspace; initial, final: states."""
        self._check(
            self._library.polysketch_attention_forward(
                shape, inputs, initial, out, denominators, final, workspace, size, stream
            )
        )

    def backward(
        self, shape, inputs, out, denominators, out_gradient, gradients, workspace, size, stream=0, *, initial=None
    ):
        self._check(
            self._library.polysketch_attention_backward(
                shape, inputs, initial, out, denominators, out_gradient, gradients, workspace, size, stream
            )
        )

    def _check(self, status: int) -> None:
        if status != 0:
            raise AttentionError(self._library.polysketch_attention_error().decode())


@functools.cache
def default_library() -> Library:
    path = os.environ.get("POLYSKETCH_ATTENTION_LIBRARY", "libpolysketch-attention.so")
    return Library(path)
