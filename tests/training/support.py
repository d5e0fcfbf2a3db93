"""What the tests of polysketch_training share: paths, configs of every kind, models whose parameters are not their defaults."""

import os
import pathlib
import subprocess
import sys
import unittest

import torch

from polysketch_tools.model_config import ATTENTION_KINDS, KV_KINDS, ModelConfig
from polysketch_training import PolysketchModel

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHARED = pathlib.Path(os.environ.get("POLYSKETCH_SHARED", ROOT.parent / "shared"))
if not SHARED.is_dir():
    SHARED = pathlib.Path("/work/shared")  # a worktree that does not lie beside the recordings
GOLDENS = ROOT / "tests/data/goldens"
DEMO, NOVELS = ROOT / "models/demo", ROOT / "models/novels"
sys.path.append(str(ROOT / "tests/tools"))  # reference_model: the equations in float64

# The tensors of these tests are small; threads that wait for each other cost more than they compute.
torch.set_num_threads(1)

RECURRENT_KINDS = tuple(kind for kind in ATTENTION_KINDS if kind not in KV_KINDS)
# (kind, decay_gate) of every model that there is.
MODELS = tuple((kind, False) for kind in ATTENTION_KINDS) + tuple((kind, True) for kind in RECURRENT_KINDS)


def get_model(name: str) -> pathlib.Path:
    """The folder that scripts/get-model makes. SkipTest where the machine cannot make it."""
    made = subprocess.run([ROOT / "scripts/get-model", name], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        raise unittest.SkipTest(f"models/{name} cannot be had here: {(made.stderr.splitlines() or [''])[-1]}")
    return (ROOT / "models" / name).resolve()


def small_config(kind: str, **changes) -> ModelConfig:
    fields = {"vocab_size": 61, "emb_dim": 48, "num_heads": 2, "num_layers": 2, "context_length": 96, "grain_size": 16}
    if kind == "polynomial" or kind.startswith("random_"):
        fields["power"] = 4
    if kind == "polynomial_square":
        fields |= {"power": 3, "alpha": 0.5, "beta": 8.0, "head_coefficients": True}
    if kind == "affine_square":
        fields |= {"alpha": -0.5, "beta": 8.0}
    if "sketch" in kind:
        fields["sketch_size"] = 12  # not a multiple of the tile of 8
    if kind.startswith("random_"):
        fields["sketch_kind"] = "gaussian"
    if kind.endswith("_mixed"):
        fields["near_power"] = 4
    if kind == "performer":
        fields["num_features"] = 20
    if kind == "linformer":
        fields["projected_rows"] = 4
    return ModelConfig(attention=kind, **fields | changes)


def small_model(kind: str, *, decay_gate: bool = False, dtype=torch.float64, **changes) -> PolysketchModel:
    """A model in float64, every scale and bias moved away from 1 and 0. With gates, which fade within a few blocks, its other
    weights are those of the model without."""
    torch.manual_seed(3)
    model = PolysketchModel(small_config(kind, **changes), seed=3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1 or name.endswith(".coefficients"):
                parameter.add_(0.2 * torch.randn_like(parameter))
        if decay_gate:
            gated = PolysketchModel(small_config(kind, decay_gate=True, **changes), seed=3)
            gated.load_state_dict(model.state_dict(), strict=False)
            model = gated
            for layer in model.layers:
                layer.attn.gate.weight.normal_(std=0.5)
                layer.attn.gate.bias.normal_(mean=2.0, std=0.5)
    return model.to(dtype)


def tokens_for(model: PolysketchModel, rows: int, count: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randint(model.config.vocab_size, (rows, count), generator=generator)


def rows_that_part(model: PolysketchModel, count: int, first: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Two rows of `count` tokens that differ in every token from `first` on."""
    tokens = tokens_for(model, 1, count)
    changed = tokens.clone()
    changed[:, first:] = (changed[:, first:] + 1) % model.config.vocab_size
    return tokens, changed
