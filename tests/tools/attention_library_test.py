"""polysketch_training/cuda_library.py over the emulated kernels: numbers, and refusals in words. It needs no PyTorch."""

import importlib.util
import os
import pathlib
import unittest

import support

import numpy as np
from ml_dtypes import bfloat16

# By its path: the package around it imports PyTorch, which .venv does not have.
_PATH = support.ROOT / "training/src/polysketch_training/cuda_library.py"
_SPEC = importlib.util.spec_from_file_location("cuda_library", _PATH)
binding = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(binding)

BATCH, HEADS, TOKENS, D, SKETCH, BLOCK = 1, 2, 40, 32, 8, 16


def shape(**changes) -> binding.Shape:
    sizes = dict(
        batch=BATCH,
        heads=HEADS,
        tokens=TOKENS,
        head_dim=D,
        near_dim=D,
        sketch_dim=SKETCH,
        near_power=4,
        block=BLOCK,
        stabilizer=1.0,
        input_type=binding.BF16,
        chunk=0,
        decay_gate=0,
        far_power=2,
    )
    return binding.Shape(**sizes | changes)


def tensor(array: np.ndarray) -> binding.Tensor:
    kind = binding.BF16 if array.dtype == bfloat16 else binding.F32
    strides = (stride // array.itemsize for stride in array.strides[:3])
    return binding.Tensor(array.ctypes.data, kind, *strides)


def aligned(size: int) -> tuple[np.ndarray, int]:
    memory = np.empty(size + 256, np.uint8)
    return memory, memory.ctypes.data + -memory.ctypes.data % 256


class AttentionLibraryTest(unittest.TestCase):
    def setUp(self):
        folder = pathlib.Path(os.environ["POLYSKETCH_BIN_DIR"])
        path = folder / "libpolysketch-attention-emulated.so"
        if not path.exists():
            self.skipTest(f"{path.name} is not built here")
        self.library = binding.Library(str(path))
        generator = np.random.default_rng(1)

        def rows(width):
            values = generator.standard_normal((BATCH, HEADS, TOKENS, width)) * width**-0.25
            return values.astype(bfloat16)

        self.names = ("near_q", "near_k", "far_q", "far_k", "v")
        self.arrays = dict(zip(self.names, map(rows, (D, D, SKETCH, SKETCH, D))))

    def run_forward(self, sizes=None, **states):
        sizes = sizes or shape()
        out = np.empty((BATCH, HEADS, TOKENS, D), np.float32)
        denominators = np.empty((BATCH, HEADS, TOKENS), np.float32)
        need = self.library.workspace(sizes).forward
        memory, address = aligned(need)
        arrays = binding.Arrays(*(tensor(self.arrays[name]) for name in self.names))
        self.library.forward(
            sizes, arrays, tensor(out), denominators.ctypes.data, address, need, **states
        )
        return out, denominators

    def test_forward_and_backward_are_the_definition(self):
        self.assertTrue(self.library.emulated)
        wide = {name: array.astype(np.float64) for name, array in self.arrays.items()}
        near = np.einsum("bhtd,bhsd->bhts", wide["near_q"], wide["near_k"])
        far = np.einsum("bhtd,bhsd->bhts", wide["far_q"], wide["far_k"])
        t, s = np.arange(TOKENS)[:, None], np.arange(TOKENS)[None]
        own = t // BLOCK == s // BLOCK
        weights = np.where(own, near**4, far**2) * (s <= t)
        want_denominators = 1 + weights.sum(-1)
        want = weights @ wide["v"] / want_denominators[..., None]
        out, denominators = self.run_forward()
        # Weights, features and states are rounded to bf16 (2^-8 at most).
        np.testing.assert_allclose(denominators, want_denominators, rtol=3 * 2**-8)
        np.testing.assert_allclose(out, want, atol=6 * 2**-8 * np.abs(want).max())

        g = np.ones_like(out).astype(bfloat16)
        gradients = {name: np.empty(array.shape, np.float32) for name, array in self.arrays.items()}
        need = self.library.workspace(shape()).backward
        memory, address = aligned(need)
        self.library.backward(
            shape(),
            binding.Arrays(*(tensor(self.arrays[name]) for name in self.names)),
            tensor(out),
            denominators.ctypes.data,
            tensor(g),
            binding.Arrays(*(tensor(gradients[name]) for name in self.names)),
            address,
            need,
        )
        a = 1 / want_denominators[..., None] * np.ones(D)
        of_v = np.einsum("bhts,bhtd->bhsd", weights, a)
        np.testing.assert_allclose(gradients["v"], of_v, atol=6 * 2**-8 * np.abs(of_v).max())
        of_weight = a @ np.swapaxes(wide["v"], -1, -2) - np.sum(a * want, -1)[..., None]
        of_far = np.where(own, 0, 2 * far * of_weight) * (s <= t) @ wide["far_k"]
        np.testing.assert_allclose(
            gradients["far_q"], of_far, atol=10 * 2**-8 * np.abs(of_far).max()
        )

    def test_refusals_say_what_was_expected(self):
        for changes, words in (
            ({"tokens": 0}, "expected 1 to 16777216 tokens, found 0"),
            ({"batch": 2**40}, "batch and heads"),
            ({"heads": -1}, "batch and heads"),
            ({"head_dim": 48}, "expected head_dim 32, 64 or 128, found 48"),
            ({"near_dim": 20}, "near_dim"),
            ({"sketch_dim": 80}, "expected sketch_dim 0 or a multiple of 8 up to 72, found 80"),
            ({"near_dim": 0, "sketch_dim": 0}, "both 0"),
            ({"near_power": 0}, "near_power"),
            ({"block": 0}, "block"),
            ({"chunk": 2}, "expected chunk 0 or 1, found 2"),
            ({"chunk": 1, "sketch_dim": 0}, "expected chunk 0 in the polynomial form"),
            ({"decay_gate": 2}, "expected decay_gate 0 or 1, found 2"),
            ({"far_power": 3}, "expected far_power 1 or 2, found 3"),
            ({"far_power": 1, "sketch_dim": 32}, "expected near_dim 0 and a sketch_dim with far_power 1, found 32 and 32"),
            ({"far_power": 1, "near_dim": 0, "sketch_dim": 24}, "a multiple of 32 up to 64, found 24"),
            ({"decay_gate": 1, "sketch_dim": 0}, "expected decay_gate 0 in the polynomial form"),
        ):
            with self.subTest(changes), self.assertRaisesRegex(binding.AttentionError, words):
                self.library.workspace(shape(**changes))
        with self.assertRaisesRegex(binding.AttentionError, "log_decay: expected an address"):
            self.run_forward(shape(decay_gate=1))
        self.arrays["v"] = self.arrays["v"].astype(np.float32)
        with self.assertRaisesRegex(binding.AttentionError, "v: expected bf16, found type 1"):
            self.run_forward()
        self.arrays["v"] = np.zeros((BATCH, HEADS, TOKENS, D + 1), bfloat16)[..., :D]
        with self.assertRaisesRegex(binding.AttentionError, "v: expected strides"):
            self.run_forward()

    def test_states_are_checked(self):
        self.assertEqual(self.library.state_floats(shape()), 64 * (D + 1))
        memory, address = aligned(BATCH * HEADS * self.library.state_floats(shape()) * 4)
        memory[:] = 0
        for changes, states, words in (
            ({}, {"initial": address}, "expected chunk 1 of a call with a state, found 0"),
            ({}, {"final": address}, "expected chunk 1"),
            ({"chunk": 1}, {"initial": address + 4}, "address that is a multiple of 16"),
            ({"chunk": 1}, {"final": address}, r"multiple of the block \(16\), found 40"),
        ):
            with self.subTest(changes=changes, states=states), self.assertRaisesRegex(binding.AttentionError, words):
                self.run_forward(shape(**changes), **states)
        of_zeros, _ = self.run_forward(shape(chunk=1), initial=address)
        np.testing.assert_array_equal(of_zeros, self.run_forward()[0])

    def test_workspace_is_bounded_and_checked(self):
        # 64k tokens of 512 heads: heads take turns, about a gigabyte at a time.
        widths = {"head_dim": 64, "near_dim": 64, "sketch_dim": 32}
        large = self.library.workspace(
            shape(batch=16, heads=32, tokens=65536, block=256, **widths)
        )
        self.assertLess(large.backward, 1.1 * 2**30)
        self.assertGreater(large.backward, 0.9 * 2**30)
        arrays = binding.Arrays(*(tensor(self.arrays[name]) for name in self.names))
        out = tensor(np.empty((BATCH, HEADS, TOKENS, D), np.float32))
        need = self.library.workspace(shape()).forward
        memory, address = aligned(need)
        for place, size in ((address, need - 1), (address + 16, need), (None, need)):
            with self.assertRaisesRegex(binding.AttentionError, "workspace"):
                self.library.forward(shape(), arrays, out, memory.ctypes.data, place, size)


if __name__ == "__main__":
    unittest.main()
