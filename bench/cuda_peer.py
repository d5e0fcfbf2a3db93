#!/usr/bin/env python3
"""Measures PyTorch on this GPU: a ceiling for polysketch-cuda-bench, and flash attention on the same shapes.

    cuda_peer.py --ceiling    prints TFLOP/s of an 8192^3 bf16 product
    cuda_peer.py              prints a table of scaled_dot_product_attention, flash backend, causal, bf16: forward, and forward
                              and backward; with POLYSKETCH_ATTENTION_LIBRARY beside polysketch attention (d 64, r 32, blocks
                              of 256; the sketches are given, as q, k and v are)
"""

import os
import pathlib
import statistics
import sys

import torch


def microseconds(work, repeats=11):
    """Median time of a graph replay with a cold L2."""
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    for _ in range(3):
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    times = []
    for _ in range(repeats):
        flush.zero_()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return statistics.median(times)


def ceiling():
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    teraflops = 2 * 8192**3 / microseconds(lambda: torch.mm(a, b)) * 1e-6
    print(f"{teraflops:.1f}")


# Batch, heads, d, n.
SHAPES = [
    (1, 12, 64, 2048),
    (1, 12, 64, 8192),
    (1, 12, 64, 32768),
    (1, 12, 64, 65536),
    (16, 32, 64, 4096),
    (1, 12, 128, 8192),
]


def forward_and_backward(attention, tensors):
    """Returns the times of attention(*tensors) alone, and with the gradients of all tensors."""
    g = torch.randn_like(tensors[0])
    leaves = [x.requires_grad_() for x in tensors]

    def both():
        torch.autograd.grad(attention(*leaves), leaves, g)

    with torch.no_grad():
        forward = microseconds(lambda: attention(*leaves))
    return forward, microseconds(both)


def polysketch():
    """Returns polysketch attention, or None if POLYSKETCH_ATTENTION_LIBRARY is not set."""
    if "POLYSKETCH_ATTENTION_LIBRARY" not in os.environ:
        return None
    root = pathlib.Path(__file__).resolve().parents[1]
    sys.path += [str(root / "training/src"), str(root / "tools")]
    from polysketch_training.cuda_attention import polysketch_attention

    def attention(v, near_q, near_k, far_q, far_k):
        return polysketch_attention(
            v, near_q=near_q, near_k=near_k, far_q=far_q, far_k=far_k, block=256
        )

    return attention


def flash(q, k, v):
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def attention():
    ours = polysketch()
    print(
        f"{'attention, causal, bf16':32} {'':8} {'flash us':>10} {'TFLOP/s':>8} "
        f"{'polysketch us':>14} {'times':>6}"
    )
    for batch, heads, d, n in SHAPES:

        def rows(width):
            x = torch.randn(batch, heads, n, width, device="cuda", dtype=torch.bfloat16)
            return x * width**-0.25

        peer = forward_and_backward(flash, [rows(d) for _ in range(3)])
        widths = (64, 64, 64, 32, 32)  # of v, near and far
        mine = ours and d == 64 and forward_and_backward(ours, [rows(width) for width in widths])
        forward_flop = 2 * 2 * batch * heads * n * n / 2 * d
        # The backward of flash attention has five products where the forward has two.
        for i, (name, flop) in enumerate([("fwd", forward_flop), ("fwd+bwd", 3.5 * forward_flop)]):
            side = f"{mine[i]:14.1f} {peer[i] / mine[i]:6.1f}" if mine else f"{'-':>14} {'-':>6}"
            label = f"{batch} x {heads} heads, d {d}, n {n}"
            print(f"{label:32} {name:8} {peer[i]:10.1f} {flop / peer[i] * 1e-6:8.1f} {side}")


if __name__ == "__main__":
    ceiling() if sys.argv[1:] == ["--ceiling"] else attention()
