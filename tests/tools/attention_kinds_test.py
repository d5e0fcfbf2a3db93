"""What the tools know of an attention kind is what kernels/attention_kinds.h has of it."""

import re
import unittest

import support

from polysketch_tools.errors import ToolError
from polysketch_tools.model_config import ATTENTION_KINDS, COEFFICIENT_KINDS, KV_KINDS, ModelConfig, used_fields

# Of a trait that a line of the table does not have.
DEFAULTS = {"mixed": "false", "qk_norm": "false", "coefficients": "false", "min_power": "2", "max_power": "64", "default_power": "4"}
SKETCHES = ("FarRows::kRandom", "FarRows::kLearned")


def table() -> dict[str, dict[str, str]]:
    """Name of a kind -> its traits, in the order of the table."""
    source = (support.ROOT / "kernels/attention_kinds.h").read_text()
    lines = re.findall(r"^ *\{(\.name = .*)\},$", source, re.MULTILINE)
    rows = [DEFAULTS | dict(re.findall(r"\.(\w+) = \"?([\w:.-]+)", line)) for line in lines]
    return {row["name"]: row for row in rows}


def config_of(kind: str, **fields) -> ModelConfig:
    sizes = {"vocab_size": 61, "emb_dim": 16, "num_heads": 2, "num_layers": 1, "context_length": 64}
    of_kinds = {"grain_size": 8, "near_power": 4, "sketch_size": 4, "sketch_kind": "srht", "num_features": 12, "power": 4}
    own = {name: value for name, value in of_kinds.items() if name in used_fields(kind)}
    return ModelConfig(attention=kind, **(sizes | own | fields))


class AttentionKindsTest(unittest.TestCase):
    def test_names(self):
        self.assertEqual(tuple(table()), ATTENTION_KINDS)

    def test_traits(self):
        for kind, traits in table().items():
            with self.subTest(kind):
                config = config_of(kind)
                config.check()
                self.assertEqual(kind in KV_KINDS, traits["far"] == "FarRows::kNone")
                self.assertEqual(config.is_recurrent, traits["far"] != "FarRows::kNone")
                self.assertEqual(config.is_random, traits["far"] == "FarRows::kRandom")
                self.assertEqual(config.is_learned, traits["far"] == "FarRows::kLearned")
                self.assertEqual("sketch_size" in used_fields(kind), traits["far"] in SKETCHES)
                self.assertEqual("num_features" in used_fields(kind), traits["far"] == "FarRows::kOwnFeatures")
                self.assertEqual(config.is_mixed, traits["mixed"] == "true")
                self.assertEqual(config.has_qk_norm, traits["qk_norm"] == "true")
                self.assertEqual(kind in COEFFICIENT_KINDS, traits["coefficients"] == "true")

    def test_powers(self):
        for kind, traits in table().items():
            low, high = int(traits["min_power"]), int(traits["max_power"])
            if "power" in used_fields(kind):
                config_of(kind, power=high).check()
                for power in (low - 1, high + 1):
                    with self.subTest(kind, power=power), self.assertRaises(ToolError):
                        config_of(kind, power=power).check()
            self.assertEqual(traits["default_power"] == "0", kind == "polynomial_square")


if __name__ == "__main__":
    unittest.main()
