#!/usr/bin/env python3
"""What PyTorch reaches on this GPU: ceilings for polysketch-cuda-bench, and its flash attention on the same shapes.

    cuda_peer.py --ceilings   prints two numbers: GB/s of a copy (read and written), TFLOP/s of an 8192^3 bf16 product
    cuda_peer.py              prints a table of scaled_dot_product_attention, flash backend, causal, bf16, d 64
"""

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


def ceilings():
    source = torch.randint(0, 256, (1 << 32,), dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    gigabytes = 2 * source.numel() / microseconds(lambda: target.copy_(source)) * 1e-3
    del source, target
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    teraflops = 2 * 8192**3 / microseconds(lambda: torch.mm(a, b)) * 1e-6
    print(f"{gigabytes:.0f} {teraflops:.1f}")


def attention():
    print(f"{'flash attention, causal, bf16, d 64':44} {'us':>10} {'TFLOP/s':>10}")
    for batch, heads, n in [(1, 12, 2048), (1, 12, 8192), (1, 12, 32768), (1, 12, 65536), (16, 32, 4096)]:
        q, k, v = (torch.randn(batch, heads, n, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
            time = microseconds(
                lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True))
        flop = 2 * 2 * batch * heads * n * n / 2 * 64
        print(f"{f'{batch} x {heads} heads, n {n}':44} {time:10.1f} {flop / time * 1e-6:10.1f}")


if __name__ == "__main__":
    ceilings() if sys.argv[1:] == ["--ceilings"] else attention()
