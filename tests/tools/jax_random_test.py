"""The generator of the authors' sketches against values recorded from jax 0.10.2."""

import fractions
import unittest
import zlib

import support

import numpy as np

from polysketch_tools import jax_random, safetensors
from polysketch_tools.convert import draw_sketch

# seed, layer, shape; the two keys of split(fold_in(PRNGKey(seed), layer)); of normal(second key, shape) / sqrt(shape[1]): bits of
# the first and last value, CRC-32 of all bytes.
RECORDED = (
    (
        3,
        0,
        (32, 8),
        [732048474, 698085531, 1439985689, 1586930987],
        3185219169,
        1057662745,
        380849543,
    ),
    (
        3,
        1,
        (32, 8),
        [1727807664, 1616631547, 1749293149, 3807081006],
        3191995608,
        1031980502,
        2466483932,
    ),
    (
        0,
        0,
        (64, 32),
        [4165894930, 804218099, 1353695780, 2116000888],
        3194200245,
        3196104612,
        231260906,
    ),
    (
        42,
        11,
        (64, 64),
        [3582406945, 1359905274, 3365621314, 850623499],
        1008695562,
        988077154,
        3806633447,
    ),
    (
        4294967295,
        23,
        (7, 5),
        [1241996431, 2624003093, 3916252001, 2508946132],
        3203290583,
        1050329223,
        2736869667,
    ),
    (
        123456789,
        5,
        (1, 1),
        [3968142553, 140897976, 2244315673, 1557131873],
        3204183725,
        3204183725,
        4103976795,
    ),
    (
        1,
        2,
        (128, 256),
        [4161243239, 1993177247, 2071719429, 1109409836],
        1036527421,
        1030741591,
        1593691421,
    ),
    (
        7,
        1023,
        (3, 1001),
        [913372754, 1681794640, 2447405823, 80270764],
        1007010132,
        3138533131,
        1169003178,
    ),
)


class JaxRandomTest(unittest.TestCase):
    def test_recorded_from_jax(self):
        for seed, layer, shape, keys, first, last, checksum in RECORDED:
            with self.subTest(seed=seed, layer=layer, shape=shape):
                key = jax_random.prng_key(seed)
                split = jax_random.split(jax_random.fold_in(key, layer))
                self.assertEqual(split.ravel().tolist(), keys)
                sketch = draw_sketch(key, layer, (2, *shape))[1]
                bits = sketch.ravel().view(np.uint32)
                self.assertEqual((int(bits[0]), int(bits[-1])), (first, last))
                self.assertEqual(zlib.crc32(sketch.tobytes()), checksum)

    def test_the_shared_readme(self):
        sketch = draw_sketch(jax_random.prng_key(3), 0, (2, 32, 8))
        np.testing.assert_allclose(
            sketch[0, 0, :2], [0.27390345, 0.01268508], rtol=0, atol=1e-8
        )  # its last digit

    def test_the_golden_case(self):
        """Its logits, which the engine's tests check, were recorded with these matrices."""
        tensors = safetensors.read([support.GOLDENS / "random_sketch/model.safetensors"])
        for layer in (0, 1):
            np.testing.assert_array_equal(
                tensors[f"layers.{layer}.attn.sketch.level0"],
                draw_sketch(jax_random.prng_key(3), layer, (2, 32, 8)),
            )

    def test_values_are_normal(self):
        values = jax_random.normal(jax_random.prng_key(9), (1 << 20,)).astype(np.float64)
        self.assertLess(abs(values.mean()), 5 / 1024)
        self.assertLess(abs(values.var() - 1), 5 * 2**0.5 / 1024)
        self.assertLess(abs((values**4).mean() - 3), 5 * 96**0.5 / 1024)


class FmaTest(unittest.TestCase):
    def test_rounds_once(self):
        random = np.random.default_rng(1)

        def floats(size):
            return (random.standard_normal(size) * 2.0 ** random.integers(-12, 12, size)).astype(
                np.float32
            )

        a, b, c = floats(3000), floats(3000), floats(3000)
        # Sums a hair above or below the midpoint of two floats: rounding to float64 on the way would lose the hair.
        tie = np.float32(1 + 2.0**-12) * np.ones(4, np.float32)
        a = np.concatenate([a, tie, -tie])
        b = np.concatenate([b, tie, tie])
        hair = np.float32([2.0**-60, -(2.0**-60), 2.0**-100, -(2.0**-100)])
        c = np.concatenate([c, hair, hair])
        result = jax_random._fma(a, b, c)
        for x, y, z, got in zip(a.tolist(), b.tolist(), c.tolist(), result):
            exact = fractions.Fraction(x) * fractions.Fraction(y) + fractions.Fraction(z)
            self.assertEqual(got, nearest_float(exact), (x, y, z))


def nearest_float(value: fractions.Fraction) -> np.float32:
    """Round to nearest, ties to even, by comparing the neighbours."""
    guess = np.float32(float(value))
    candidates = [
        np.nextafter(guess, np.float32(-np.inf)),
        guess,
        np.nextafter(guess, np.float32(np.inf)),
    ]
    return min(
        candidates,
        key=lambda f: (abs(fractions.Fraction(float(f)) - value), int(f.view(np.uint32)) & 1),
    )


if __name__ == "__main__":
    unittest.main()
