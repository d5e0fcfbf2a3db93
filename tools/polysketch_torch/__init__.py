"""Polysketch attention for PyTorch training scripts, on the kernels of the server.

    from polysketch_torch import LearnedSketch, polysketch_attention

The library, libpolysketch-attention.so, is the file that POLYSKETCH_ATTENTION_LIBRARY names (CMake preset cuda builds it
in build/cuda/bin). library.py is its C interface for Python and needs no PyTorch.
"""

try:
    from polysketch_torch.attention import LearnedSketch, polysketch_attention
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
else:
    __all__ = ["LearnedSketch", "polysketch_attention"]
