"""Sinusoidal positions and the rotation of queries and keys (docs/attention.md).

The product of a position and theta is exact: theta is rounded to float32 (24 bits), positions have at most 29 bits, and
the product is float64. The rounding to the model's type comes after sine and cosine.
"""

import torch


def cos_sin(positions: torch.Tensor, pairs: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns cos and sin [..., n, pairs] of integer positions [..., n]; theta_i = 10000^(-i / pairs)."""
    exponents = torch.arange(pairs, dtype=torch.float64, device=positions.device) / pairs
    thetas = (10000.0**-exponents).float().double()
    angles = positions.double()[..., None] * thetas
    return angles.cos().to(dtype), angles.sin().to(dtype)


def sinusoids(positions: torch.Tensor, width: int, dtype: torch.dtype) -> torch.Tensor:
    """Returns PE [..., n, width]: columns 2i and 2i + 1 are the sine and the cosine of angle i."""
    cos, sin = cos_sin(positions, width // 2, dtype)
    return torch.stack([sin, cos], dim=-1).flatten(-2)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """RoPE on x [..., n, d], cos and sin [..., n, d / 2]: pairs interleaved in, halves out."""
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.cat([even * cos - odd * sin, odd * cos + even * sin], dim=-1).to(x.dtype)
