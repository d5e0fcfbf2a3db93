"""Longer sequences than the teacher was trained for: its RoPE, scaled as config.json describes it."""

import argparse
import dataclasses
import math

from polysketch_tools.errors import ToolError

KINDS = ("llama3", "linear")  # those that polysketch-server reads


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
        raise argparse.ArgumentTypeError(f"expected {':X or '.join(KINDS)}:X with X from 1 to 1e6, found {text!r:.80}")
    return Scaling(kind, value)


def scaled_length(config: dict, scaling: Scaling | None) -> int:
    return int(config["max_position_embeddings"] * (scaling.factor if scaling else 1))


def scaled_fields(config: dict, scaling: Scaling | None) -> dict:
    """The fields of config.json that change. A teacher that has a scaling of the same kind gets a larger factor."""
    if scaling is None:
        return {}
    name = "rope_parameters" if config.get("rope_parameters") else "rope_scaling"
    own = config.get(name) or {}
    found = own.get("rope_type") or own.get("type") or "default"
    if found not in ("default", scaling.kind):
        raise ToolError(f'config.json: field "{name}": --rope-scaling {scaling.kind}: expected no scaling or this one, found {found!r:.80}')
    new = own | {"rope_type": scaling.kind, "factor": own.get("factor", 1.0) * scaling.factor}
    if scaling.kind == "llama3" and found == "default":
        # Waves longer than the trained length are slowed, those below a quarter of it stay, as in Llama 3.1.
        new |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": config["max_position_embeddings"]}
    return {name: new, "max_position_embeddings": scaled_length(config, scaling)}
