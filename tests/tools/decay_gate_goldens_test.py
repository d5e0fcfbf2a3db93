"""tests/data/decay_gate is what decay_gate_goldens.py computes."""

import unittest

import support

from decay_gate_goldens import FORMS, make_decay_gate


class DecayGateGoldensTest(support.ToolTest):
    def test_the_files_of_the_tree(self):
        make_decay_gate(self.dir)
        for form in FORMS:
            self.assert_made_as_kept(support.ROOT / "tests/data/decay_gate" / f"{form}.safetensors")


if __name__ == "__main__":
    unittest.main()
