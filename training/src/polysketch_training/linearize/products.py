"""In what training multiplies matrices: --precision. Weights, norms, softmax, losses and the optimizer are float32 in either."""

import contextlib
from collections.abc import Iterator

import torch

PRECISIONS = ("f32", "bf16")


def resolve(name: str, device: torch.device) -> str:
    """One of PRECISIONS. name: one of them, or "auto"."""
    return name if name != "auto" else "bf16" if device.type == "cuda" else "f32"


@contextlib.contextmanager
def products(precision: str, device: torch.device) -> Iterator[None]:
    """bf16: factors are rounded to bfloat16. Layers keep products in bfloat16 too; where autocast is off they are float32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium" if precision == "bf16" else "highest")
    try:
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            yield
    finally:
        torch.set_float32_matmul_precision(before)


def product_type(x: torch.Tensor) -> torch.dtype:
    """In what x is multiplied here."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
