"""Causal Linformer (Wang et al., 2020) in plain PyTorch, to compare with; the server does not have it. Memory grows linearly with
the tokens, time with their square times projected_rows / block.

The published Linformer projects all keys of a fixed length, later ones too. Here the sequence is cut into blocks. A query meets
the tokens of its own block up to itself, and of each earlier block b the projected rows E K_b and F V_b. E and F [rows, block]
are shared by the blocks. One softmax covers both, with weights exp(q . k / sqrt(d)).
"""

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


def linformer_attention(q, k, v, project_k, project_v):
    """Returns out [B, H, n, d] of q, k, v [B, H, n, d]; project_k and project_v are E and F [rows, block]. Blocks are counted
    from the first token."""
    tokens, (rows, block) = q.shape[2], project_k.shape
    far_k, far_v = _projected(k, project_k), _projected(v, project_v)
    outputs = []
    for number, begin in enumerate(range(0, tokens, block)):
        own, far = slice(begin, begin + block), slice(0, number * rows)
        arguments = (q[:, :, own], far_k[:, :, far], k[:, :, own], far_v[:, :, far], v[:, :, own])
        if torch.is_grad_enabled() and tokens > block:
            outputs.append(checkpoint(_block, *arguments, use_reentrant=False))
        else:
            outputs.append(_block(*arguments))
    return torch.cat(outputs, dim=2)


def _projected(x, matrix):
    """Returns the projected rows [B, H, blocks * rows, d] of the blocks that have a block after them."""
    block = matrix.shape[1]
    earlier = (x.shape[2] - 1) // block
    blocks = x[:, :, : earlier * block].unflatten(2, (earlier, block))
    return (matrix.to(x.dtype) @ blocks).to(x.dtype).flatten(2, 3)


def _block(q, far_k, k, far_v, v):
    mask = torch.ones(q.shape[2], far_k.shape[2] + k.shape[2], dtype=torch.bool, device=q.device).tril(far_k.shape[2])
    keys, values = torch.cat([far_k, k], dim=2), torch.cat([far_v, v], dim=2)
    return functional.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
