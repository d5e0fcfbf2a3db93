"""learned_sketch: layers.LearnedSketch by libpolysketch-attention.so, with autograd (docs/training.md)."""

import torch
from torch import nn

from polysketch_tools.model_config import SKETCH_LEVELS
from polysketch_training import cuda_calls
from polysketch_training import cuda_library as binding


@torch.compiler.disable
def supports(network) -> bool:
    """Whether the library has kernels of the network's sizes for this device, and no matrix is more than a matrix (as LoRA
    makes it)."""
    width = network.branch1["level0"].up.in_features
    matrices = [matrix for level in _levels(network) for matrix in (level.up, level.down)]
    plain = all(type(matrix) is nn.Linear for matrix in matrices)
    return plain and binding.default_library().supports_sketch(width, network.sketch_size)


@torch.compiler.disable
def learned_sketch(x, network):
    """Returns network(x), [..., r] of x's dtype, for x [..., d].

    x is rounded to bf16, and so are matrices where they are multiplied; sums are float32. x and every parameter get a gradient,
    with the same bits whenever the inputs have the same.
    """
    parameters = [
        parameter
        for level in _levels(network)
        for parameter in (level.norm.scale, level.norm.bias, level.up.weight, level.down.weight)
    ]
    width = network.branch1["level0"].up.in_features
    if x.shape[-1] != width:
        raise ValueError(f"expected rows of {width}, found {x.shape[-1]}")
    rows = x.to(torch.bfloat16).contiguous()
    parameters = (parameter.to(torch.float32).contiguous() for parameter in parameters)
    return _LearnedSketch.apply(rows, network.sketch_size, torch.is_grad_enabled(), *parameters).to(x.dtype)


def _levels(network):
    return [branch[f"level{i}"] for branch in (network.branch1, network.branch2) for i in range(SKETCH_LEVELS)]


def _addresses(parameters) -> binding.SketchNetwork:
    return binding.SketchNetwork(*(parameter.data_ptr() for parameter in parameters))


class _LearnedSketch(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, sketch_size, keep, *parameters):
        library = binding.default_library()
        cuda_calls.check_place(library, x)
        for parameter in parameters:
            if parameter.device != x.device:
                raise ValueError(f"expected parameters on {x.device}, found {parameter.device}")
        ctx.shape = binding.SketchShape(x[..., 0].numel(), x.shape[-1], sketch_size)
        out = x.new_empty(*x.shape[:-1], sketch_size)
        kept = None
        if keep:
            kept = torch.empty(library.sketch_sizes(ctx.shape).kept, dtype=torch.uint8, device=x.device)
        with torch.cuda.device_of(x):
            library.sketch_forward(
                *(ctx.shape, _addresses(parameters), x.data_ptr(), out.data_ptr()),
                *(kept.data_ptr() if keep else None, cuda_calls.stream(x)),
            )
        ctx.save_for_backward(x, kept, *parameters)
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, out_gradient):
        library = binding.default_library()
        x, kept, *parameters = ctx.saved_tensors
        out_gradient = out_gradient.contiguous()
        x_gradient, gradients = torch.empty_like(x), [torch.empty_like(parameter) for parameter in parameters]
        size = library.sketch_sizes(ctx.shape).workspace
        memory, address = cuda_calls.workspace(size, x)
        with torch.cuda.device_of(x):
            library.sketch_backward(
                *(ctx.shape, _addresses(parameters), x.data_ptr(), kept.data_ptr()),
                *(out_gradient.data_ptr(), x_gradient.data_ptr(), _addresses(gradients)),
                *(address, size, cuda_calls.stream(x)),
            )
        return (x_gradient, None, None, *gradients)
