"""What calls of libpolysketch-attention.so need of torch: the place of tensors, workspaces, the stream."""

import torch

_ALIGNMENT = 256  # of a workspace


def check_place(library, x) -> None:
    """Raises ValueError unless x is where the library computes."""
    if x.is_cuda == library.emulated:
        raise ValueError(f"expected tensors of {'the host' if library.emulated else 'a GPU'}")


def workspace(size: int, like):
    """Returns a tensor on the device of `like`, and the first aligned address in it."""
    memory = torch.empty(size + _ALIGNMENT, dtype=torch.uint8, device=like.device)
    return memory, memory.data_ptr() + -memory.data_ptr() % _ALIGNMENT


def stream(x) -> int:
    return torch.cuda.current_stream(x.device).cuda_stream if x.is_cuda else 0
