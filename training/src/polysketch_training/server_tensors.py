"""The tensors of a model in the server's layout: the names of docs/model-format.md, matrices [in, out], float32."""

import pathlib

import numpy as np
import torch
from torch import nn

from polysketch_tools import safetensors
from polysketch_tools.errors import ToolError
from polysketch_tools.model_config import ModelConfig, read_model_config, tensor_shapes
from polysketch_training.model import PolysketchModel


def server_tensors(model: PolysketchModel) -> dict[str, np.ndarray]:
    """Returns every tensor by its name in the server's folder, float32 whatever the model's type is."""
    transposed = _matrices(model)
    tensors = {}
    for name, tensor in model.state_dict().items():
        array = tensor.detach().to("cpu", torch.float32)
        tensors[name] = (array.T if name in transposed else array).contiguous().numpy()
    return tensors


def load_server_tensors(model: PolysketchModel, tensors: dict[str, np.ndarray]) -> None:
    """Copies tensors of a folder into the model. ToolError names what is missing, left over or of another shape."""
    transposed = _matrices(model)
    state = model.state_dict()
    if wrong := state.keys() ^ tensors.keys():
        raise ToolError(f"expected the tensors of the model; missing or left over: {', '.join(sorted(wrong)[:5])}")
    for name, tensor in state.items():
        array = np.array(tensors[name], np.float32)
        array = array.T if name in transposed else array
        if array.shape != tuple(tensor.shape):
            raise ToolError(f"tensor {name}: expected shape {list(tensor.shape)}, found {list(array.shape)}")
        tensor.copy_(torch.from_numpy(array))


def load_folder(folder: pathlib.Path) -> PolysketchModel:
    """Reads a model folder whose tensors are F32, BF16 or F16."""
    config = read_model_config(folder / "config.json")
    model = PolysketchModel(config)
    load_server_tensors(model, read_folder_tensors(folder, config))
    return model


def read_folder_tensors(folder: pathlib.Path, config: ModelConfig) -> dict[str, np.ndarray]:
    paths = sorted(folder.glob("model*.safetensors"))
    if not paths:
        raise ToolError(f"{folder}: expected model.safetensors or its shards, found none")
    tensors = safetensors.read(paths)
    if quantised := sorted(name for name in tensors if name.endswith(".weight.scale")):
        raise ToolError(f"{folder}: expected tensors of f32, bf16 or f16; found 8 or 4 bits ({quantised[0]})")
    for name, shape in tensor_shapes(config).items():
        if name in tensors and tensors[name].shape != shape:
            raise ToolError(f"{folder}: tensor {name}: expected shape {list(shape)}, found {list(tensors[name].shape)}")
    return tensors


def _matrices(model: PolysketchModel) -> set[str]:
    return {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, nn.Linear)}
