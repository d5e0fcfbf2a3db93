"""Configs of several attention kinds of one shape."""

from polysketch_tools.model_config import ModelConfig, used_fields


def config_of(shape: dict, kind: dict, **more) -> ModelConfig:
    """Returns the config of `shape` and the attention kind of `kind`: its fields, and the fields of the shape that it uses."""
    of_some_kinds = {"grain_size", "power", "near_power", "sketch_size", "sketch_kind", "num_features"}
    used = used_fields(kind["attention"]) | {"grain_size"}
    fields = {name: value for name, value in shape.items() if name in used or name not in of_some_kinds}
    config = ModelConfig(**fields | kind | more)
    config.check()
    return config
