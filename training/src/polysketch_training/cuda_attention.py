"""polysketch_attention and chunk_attention: attention by libpolysketch-attention.so, with autograd (docs/training.md)."""

import functools

import torch
from torch.nn import functional

from polysketch_training import cuda_calls
from polysketch_training import cuda_library as binding


@torch.compiler.disable  # the library's calls are no operations that TorchInductor could compile
def polysketch_attention(
    v,
    *,
    near_q=None,
    near_k=None,
    far_q=None,
    far_k=None,
    log_decay=None,
    block=256,
    near_power=4,
    far_power=2,
    stabilizer=1.0,
):
    """out_t = sum_s w[t,s] v_s / (stabilizer + sum_s w[t,s]) over s <= t, all tensors [batch, heads, tokens, width].

    w[t,s] = (near_q_t . near_k_s)^near_power in the block of t, (far_q_t . far_k_s)^far_power in earlier blocks. Without
    near tensors the weights in the block of t are (far_q_t . far_k_s)^far_power too; without far tensors all tokens are one
    block. far_power is 2, or 1 without near tensors.
    log_decay [batch, heads, tokens], at most 0, multiplies w[t,s] by e^(G_t - G_s), G its running sum; it is float32 in the
    library, and needs far tensors.
    Tensors of any dtype are accepted and rounded to bf16; sums are float32; the result has v's dtype. Every tensor gets a
    gradient.
    """
    near, far = (near_q, near_k), (far_q, far_k)
    powers = (near_power, far_power)
    return _attend(v, near, far, log_decay, block, powers, stabilizer, sums=None, chunk=False, want_sums=False)[0]


@torch.compiler.disable
def chunk_attention(
    v,
    *,
    far_q,
    far_k,
    near_q=None,
    near_k=None,
    log_decay=None,
    sums=None,
    want_sums=False,
    block=256,
    near_power=4,
    far_power=2,
    stabilizer=1.0,
):
    """The same for a chunk of a sequence that starts with a block. Returns out, and the sums after the chunk or None.

    sums: (S [batch, heads, F, d], z [batch, heads, F]) of the tokens before the chunk, or None, as block_attention has
    them: float32, without a gradient. want_sums takes a number of tokens that is a multiple of the block.
    """
    near, far = (near_q, near_k), (far_q, far_k)
    if want_sums and v.shape[2] % block:
        raise ValueError(f"expected a multiple of the block ({block}) of tokens before a state, found {v.shape[2]}")
    places = _places(far_k.shape[-1], far_power)
    sums = None if sums is None else _packed(*sums, places)
    powers = (near_power, far_power)
    out, after = _attend(v, near, far, log_decay, block, powers, stabilizer, sums=sums, chunk=True, want_sums=want_sums)
    return out, _unpacked(after, places, v.shape[-1]) if want_sums else None


def _attend(v, near, far, log_decay, block, powers, stabilizer, *, sums, chunk, want_sums):
    (near_q, near_k), (far_q, far_k) = near, far
    pairs = [(near_q, near_k), (far_q, far_k)]
    if any((q is None) != (k is None) for q, k in pairs) or all(q is None for q, _ in pairs):
        raise ValueError("expected near_q and near_k, far_q and far_k, or all four")
    width, dtype = v.shape[-1], v.dtype
    head_dim = _head_dim(width)
    # Zero columns change no dot product.
    near_q, near_k = (None if x is None else _operand(x, -x.shape[-1] % 8) for x in near)
    far_q, far_k = (None if x is None else _operand(x, -x.shape[-1] % _unit(powers[1])) for x in far)
    v = _operand(v, head_dim - width)
    if log_decay is not None:
        log_decay = log_decay.to(torch.float32).contiguous()
    out, after = _Attention.apply(
        near_q, near_k, far_q, far_k, v, log_decay, sums, block, powers, stabilizer, chunk, want_sums
    )
    return out[..., :width].to(dtype), after


def _unit(far_power: int) -> int:
    """Columns of far tensors are a multiple of this."""
    return 32 if far_power == 1 else 8


def _head_dim(width: int) -> int:
    return next((size for size in (32, 64, 128) if size >= width), width)


@functools.cache
def _places(width: int, far_power: int) -> tuple[torch.Tensor, int]:
    """Returns the library's place of each feature of block_attention, and the library's number of features.

    Products of block_attention have tiles of rows of 8 by all columns from them on; the library has tiles of 8 x 8 and zero
    columns after the last. With far_power 1 features are columns.
    """
    if far_power == 1:
        return torch.arange(width), width + -width % _unit(1)
    tiles, places = -(-width // 8), []
    starts = [0]
    for i in range(tiles):
        starts.append(starts[-1] + 64 * (tiles - i))
        for row in range(8 * i, min(8 * i + 8, width)):
            for column in range(8 * i, width):
                places.append(starts[i] + 64 * (column // 8 - i) + 8 * (row % 8) + column % 8)
    return torch.tensor(places), starts[-1]


def _packed(sums, normalizer, places_and_features):
    """Returns states [batch, heads, .] of the library."""
    places, features = places_and_features
    batch, heads, _, width = sums.shape
    packed = sums.new_zeros(batch, heads, features, _head_dim(width), dtype=torch.float32)
    of_weights = sums.new_zeros(batch, heads, features, dtype=torch.float32)
    places = places.to(sums.device)
    packed[:, :, places, :width] = sums.detach().float()
    of_weights[:, :, places] = normalizer.detach().float()
    return torch.cat([packed.flatten(2), of_weights], dim=2)


def _unpacked(state, places_and_features, width: int):
    places, features = places_and_features
    places = places.to(state.device)
    sums = state[..., :-features].unflatten(-1, (features, -1))
    return sums[:, :, places, :width], state[..., -features:][:, :, places]


def _operand(x, columns: int):
    """Returns x in bf16 with `columns` zero columns appended, in the library's layout: the last dimension dense, the
    other strides multiples of eight elements, 16-byte aligned."""
    x = functional.pad(x.to(torch.bfloat16), (0, columns)) if columns else x.to(torch.bfloat16)
    batch, heads, tokens, width = x.shape
    needed = [s for n, s in zip((batch, heads, tokens), x.stride()) if n > 1]
    fits = x.stride(3) == 1 and all(s % 8 == 0 and s >= width for s in needed)
    return x if fits and x.data_ptr() % 16 == 0 else x.contiguous()


def _tensor(x) -> binding.Tensor:
    if x is None:
        return binding.Tensor()
    kind = binding.BF16 if x.dtype == torch.bfloat16 else binding.F32
    return binding.Tensor(x.data_ptr(), kind, *x.stride()[:3])


def _arrays(tensors, log_decay) -> binding.Arrays:
    return binding.Arrays(*map(_tensor, tensors), None if log_decay is None else log_decay.data_ptr())


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, near_q, near_k, far_q, far_k, v, log_decay, sums, block, powers, stabilizer, chunk, want_sums):
        library = binding.default_library()
        cuda_calls.check_place(library, v)
        batch, heads, tokens, head_dim = v.shape
        for x in (near_q, near_k, far_q, far_k):
            if x is not None and (x.shape[:3] != v.shape[:3] or x.device != v.device):
                raise ValueError(
                    f"expected {tuple(v.shape[:3])} on {v.device}, "
                    f"found {tuple(x.shape[:3])} on {x.device}"
                )
        for q, k in ((near_q, near_k), (far_q, far_k)):
            if q is not None and q.shape != k.shape:
                raise ValueError(f"queries {tuple(q.shape)} and keys {tuple(k.shape)} differ")
        if log_decay is not None and (log_decay.shape != v.shape[:3] or log_decay.device != v.device):
            raise ValueError(
                f"log_decay: expected {tuple(v.shape[:3])} on {v.device}, "
                f"found {tuple(log_decay.shape)} on {log_decay.device}"
            )
        ctx.shape = binding.Shape(
            batch, heads, tokens, head_dim,
            0 if near_q is None else near_q.shape[3],
            0 if far_q is None else far_q.shape[3],
            powers[0], block, stabilizer, binding.BF16, int(chunk), int(log_decay is not None), powers[1],
        )  # fmt: skip
        out = torch.empty_like(v, memory_format=torch.contiguous_format)
        denominators = torch.empty(batch * heads * tokens, dtype=torch.float32, device=v.device)
        inputs = _arrays((near_q, near_k, far_q, far_k, v), log_decay)
        size = library.workspace(ctx.shape).forward
        memory, address = cuda_calls.workspace(size, v)
        after = None
        if want_sums:
            after = torch.empty(batch, heads, library.state_floats(ctx.shape), dtype=torch.float32, device=v.device)
            ctx.mark_non_differentiable(after)
        with torch.cuda.device_of(v):
            library.forward(
                *(ctx.shape, inputs, _tensor(out), denominators.data_ptr(), address, size, cuda_calls.stream(v)),
                initial=None if sums is None else sums.data_ptr(),
                final=None if after is None else after.data_ptr(),
            )
        ctx.save_for_backward(near_q, near_k, far_q, far_k, v, log_decay, sums, out, denominators)
        return out, after

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, out_gradient, _):
        library = binding.default_library()
        *arrays, log_decay, sums, out, denominators = ctx.saved_tensors
        *gradients, log_decay_gradient = (
            None if x is None else torch.empty_like(x, memory_format=torch.contiguous_format)
            for x in (*arrays, log_decay)
        )
        out_gradient = _operand(out_gradient, 0)
        size = library.workspace(ctx.shape).backward
        memory, address = cuda_calls.workspace(size, out)
        with torch.cuda.device_of(out):
            library.backward(
                ctx.shape,
                _arrays(arrays, log_decay),
                _tensor(out),
                denominators.data_ptr(),
                _tensor(out_gradient),
                _arrays(gradients, log_decay_gradient),
                address,
                size,
                cuda_calls.stream(out),
                initial=None if sums is None else sums.data_ptr(),
            )
        return (*gradients, log_decay_gradient, None, None, None, None, None, None)
