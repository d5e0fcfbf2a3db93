"""Memory that the forward pass keeps for the backward pass grows linearly with the tokens, for every kind."""

import unittest
from unittest import mock

import torch

import support

from polysketch_tools.model_config import ATTENTION_KINDS, UNSERVED_KINDS
from polysketch_training import block_attention, hyper_attention, hyper_rectangle


TOKENS, SEGMENT = 512, 64


def kept_bytes(model, tokens) -> int:
    """Bytes of the distinct memories that autograd keeps during one forward pass."""
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(tokens, targets=tokens).loss
    return sum(kept.values())


class MemoryTest(unittest.TestCase):
    def growth(self, kind: str) -> float:
        model = support.small_model(kind, dtype=torch.float32, num_layers=1)
        short, long = (kept_bytes(model, support.tokens_for(model, 1, n)) for n in (TOKENS, 2 * TOKENS))
        return long / short

    def test_every_kind_is_linear(self):
        for kind in ATTENTION_KINDS:
            for recomputed in (SEGMENT, 1 << 30):
                with self.subTest(kind=kind, recomputed_from=recomputed):
                    sizes = {"SEGMENT_TOKENS": SEGMENT, "RECOMPUTE_TOKENS": recomputed}
                    with mock.patch.multiple(block_attention, **sizes):
                        # Parameters do not grow, and the first segment reads no state: near two, not two.
                        self.assertLess(self.growth(kind), 2.1)

    def test_unserved_kinds_are_linear(self):
        with (
            mock.patch.object(hyper_attention, "EXACT_TOKENS", 64),
            mock.patch.multiple(hyper_rectangle, BLOCK=16, SAMPLES=16),
        ):
            for kind in UNSERVED_KINDS:
                with self.subTest(kind):
                    self.assertLess(self.growth(kind), 2.1)

    def test_quadratic_memory_is_found(self):
        """The measure can fail: one segment of all tokens keeps all pairs."""
        with mock.patch.object(block_attention, "SEGMENT_TOKENS", 1 << 20):
            self.assertGreater(self.growth("learned_sketch"), 2.2)


if __name__ == "__main__":
    unittest.main()
