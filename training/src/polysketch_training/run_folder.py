"""The folder of a run (--out): its settings, and where its parts lie."""

import dataclasses
import json
import pathlib

from polysketch_tools.errors import ToolError
from polysketch_tools.model_config import ModelConfig
from polysketch_training.disk import write_text
from polysketch_training.presets import Recipe


@dataclasses.dataclass
class Settings:
    """What decides the numbers of a run. A run is resumed with equal settings only."""

    config: ModelConfig
    recipe: Recipe
    precision: str  # "f32", "bf16"
    sketch_seed: int | None = None  # random kinds: PRNGKey of the sketches, so that the authors' code draws the same

    def to_dict(self) -> dict:
        return dataclasses.asdict(self)

    @staticmethod
    def from_dict(fields: dict) -> "Settings":
        # Earlier runs have the decay gate here, not in the config.
        gate = {"decay_gate": True} if fields.pop("decay_gate", False) else {}
        parts = {"config": ModelConfig(**fields["config"] | gate), "recipe": Recipe(**fields["recipe"])}
        return Settings(**fields | parts)


class RunFolder:
    def __init__(self, path: pathlib.Path):
        self.path = path
        self.settings_file = path / "run.json"
        self.tokenizer = path / "tokenizer.model"
        self.tokens = path / "tokens"
        self.checkpoints = path / "checkpoints"
        self.model = path / "model"

    def read_settings(self) -> Settings | None:
        try:
            return Settings.from_dict(json.loads(self.settings_file.read_text()))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise ToolError(f"{self.settings_file}: expected the settings of a run, found damage: {error}") from error

    def claim(self, settings: Settings) -> None:
        """Writes the settings of a new run, or checks that they are those of the run that is in the folder."""
        found = self.read_settings()
        if found is None:
            write_text(self.settings_file, json.dumps(settings.to_dict(), indent=1) + "\n")
        elif differences := list(_differences(found.to_dict(), settings.to_dict())):
            name, old, new = differences[0]
            raise ToolError(
                f"{self.path} holds a run with {name} {old!r}, found {new!r}: repeat its options, or use another --out"
            )


def _differences(old: dict, new: dict):
    for name, value in old.items():
        if isinstance(value, dict):
            yield from _differences(value, new[name])
        elif value != new[name]:
            yield name, value, new[name]
