"""Trains PolySketchFormer models and exports them to the PolySketch server (docs/training.md)."""

from polysketch_tools.model_config import ModelConfig
from polysketch_training.model import Output, PolysketchModel
from polysketch_training.state import ModelState

__all__ = ["ModelConfig", "ModelState", "Output", "PolysketchModel"]
