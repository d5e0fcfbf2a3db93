"""tests/data/decay_gate is what decay_gate_goldens.py computes."""

import unittest

import support

import numpy as np

from polysketch_tools import safetensors
from polysketch_tools.decay_gate_goldens import FORMS, make_decay_gate


class DecayGateGoldensTest(support.ToolTest):
    def test_the_files_of_the_tree(self):
        make_decay_gate(self.dir)
        for form in FORMS:
            path = support.ROOT / "tests/data/decay_gate" / f"{form}.safetensors"
            made, kept = (safetensors.read([p]) for p in (self.dir / path.name, path))
            self.assertEqual(made.keys(), kept.keys())
            for name, array in made.items():
                # Sums of up to 53 terms of numpy's products, whose order depends on the machine.
                np.testing.assert_allclose(kept[name], array, rtol=1e-12, atol=1e-13, err_msg=name)


if __name__ == "__main__":
    unittest.main()
