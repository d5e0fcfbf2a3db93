"""libpolysketch-attention.so by ctypes. polysketch_attention.h and polysketch_sketch.h of kernels/cuda/training describe the
functions and fields."""

import ctypes
import dataclasses
import functools
import os

VERSION = 6
BF16, F32, F16 = 0, 1, 2
UNSUPPORTED = 2  # a status


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


class SketchShape(ctypes.Structure):
    _fields_ = [("rows", ctypes.c_int64), ("input_dim", ctypes.c_int32), ("sketch_dim", ctypes.c_int32)]


# Addresses of scale, bias, up and down of the levels of branch 1, then of branch 2.
SketchNetwork = ctypes.c_void_p * 16


@dataclasses.dataclass
class SketchSizes:
    """Bytes of what the forward pass keeps, and of the backward pass's workspace."""

    kept: int
    workspace: int


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
        sketch, network = ctypes.POINTER(SketchShape), ctypes.POINTER(SketchNetwork)
        self._library.polysketch_sketch_forward.argtypes = [sketch, network, *[pointer] * 4]
        self._library.polysketch_sketch_backward.argtypes = [sketch, network, *[pointer] * 4, network, *end]
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

    def supports_sketch(self, input_dim: int, sketch_dim: int) -> bool:
        kept, workspace = ctypes.c_size_t(), ctypes.c_size_t()
        shape = SketchShape(1, input_dim, sketch_dim)
        status = self._library.polysketch_sketch_sizes(ctypes.byref(shape), ctypes.byref(kept), ctypes.byref(workspace))
        if status != UNSUPPORTED:
            self._check(status)
        return status != UNSUPPORTED

    def sketch_sizes(self, shape: SketchShape) -> SketchSizes:
        kept, workspace = ctypes.c_size_t(), ctypes.c_size_t()
        self._check(
            self._library.polysketch_sketch_sizes(ctypes.byref(shape), ctypes.byref(kept), ctypes.byref(workspace))
        )
        return SketchSizes(kept.value, workspace.value)

    def sketch_forward(self, shape, network, x, out, kept, stream=0):
        """Addresses as integers, of parameters in a SketchNetwork; kept: None without a backward pass."""
        self._check(self._library.polysketch_sketch_forward(shape, network, x, out, kept, stream))

    def sketch_backward(
        self, shape, network, x, kept, out_gradient, x_gradient, gradients, workspace, size, stream=0
    ):
        self._check(
            self._library.polysketch_sketch_backward(
                shape, network, x, kept, out_gradient, x_gradient, gradients, workspace, size, stream
            )
        )

    def _check(self, status: int) -> None:
        if status != 0:
            raise AttentionError(self._library.polysketch_attention_error().decode())


@functools.cache
def default_library() -> Library:
    path = os.environ.get("POLYSKETCH_ATTENTION_LIBRARY", "libpolysketch-attention.so")
    return Library(path)
