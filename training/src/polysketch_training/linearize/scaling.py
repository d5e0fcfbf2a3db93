"""Longer sequences than the teacher was trained for: its RoPE, scaled as config.json describes it."""

import argparse
import dataclasses
import math

from polysketch_tools.errors import ToolError

_TRAINED = "original_max_position_embeddings"
KINDS = ("llama3", "linear", "yarn")  # those that polysketch-server reads


@dataclasses.dataclass(frozen=True)
class Scaling:
    kind: str  # of KINDS
    factor: float  # times the teacher's length


def scaling_argument(text: str) -> Scaling:
    kind, _, factor = text.partition(":")
    try:
        value = float(factor)
    except ValueError:
        value = math.nan
    if kind not in KINDS or not 1 <= value <= 1e6:
        raise argparse.ArgumentTypeError(f"expected KIND:X with one of {', '.join(KINDS)} and X from 1 to 1e6, found {text!r:.80}")
    return Scaling(kind, value)


def scaled_length(config: dict, scaling: Scaling | None) -> int:
    return int(config["max_position_embeddings"] * (scaling.factor if scaling else 1))


def _own(config: dict) -> tuple[str, dict, str]:
    """The field of config.json that says how RoPE is scaled, its value, and the kind."""
    name = "rope_parameters" if config.get("rope_parameters") else "rope_scaling"
    own = config.get(name) or {}
    return name, own, own.get("rope_type") or own.get("type") or "default"


def scales_attention(config: dict, scaling: Scaling | None) -> bool:
    """Whether RoPE multiplies queries and keys, as YaRN does."""
    return "yarn" in (_own(config)[2], scaling.kind if scaling else None)


def check_scaling(config: dict) -> None:
    """Raises ToolError if transformers, which computes here, reads the scaling otherwise than polysketch-server."""
    name, own, _ = _own(config)
    if "attn_factor" in own:
        raise ToolError(f'config.json: field "{name}": "attn_factor": expected attention_factor, which transformers reads')


def _trained_length(config: dict) -> int:
    return config.get(_TRAINED) or _own(config)[1].get(_TRAINED) or config["max_position_embeddings"]


def served_length(config: dict) -> int:
    """The context limit of polysketch-server, from which on a window is none."""
    _, own, kind = _own(config)
    longest = config["max_position_embeddings"]
    return max(longest, int(_trained_length(config) * own["factor"])) if kind == "yarn" and own.get("factor") else longest


def scaled_fields(config: dict, scaling: Scaling | None) -> dict:
    """The fields of config.json that change. A teacher that has a scaling of the same kind gets a larger factor."""
    if scaling is None:
        return {}
    name, own, found = _own(config)
    if found not in ("default", scaling.kind):
        raise ToolError(f'config.json: field "{name}": --rope-scaling {scaling.kind}: expected no scaling or this one, found {found!r:.80}')
    new = own | {"rope_type": scaling.kind, "factor": own.get("factor", 1.0) * scaling.factor}
    if scaling.kind == "llama3" and found == "default":
        # Waves longer than the trained length are slowed, those below a quarter of it stay, as in Llama 3.1.
        new |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    if scaling.kind in ("llama3", "yarn"):
        new.setdefault(_TRAINED, _trained_length(config))
    return {name: new, "max_position_embeddings": scaled_length(config, scaling)}
