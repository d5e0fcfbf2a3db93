"""Random matrices estimate what they must."""

import unittest

import support  # noqa: F401: the path of the tools

import numpy as np

from polysketch_tools import sketches
from polysketch_tools.errors import ToolError

SIZE, RANK, DRAWS = 16, 64, 1000


def draw(generator, kind: str, degree: int, size=SIZE, rank=RANK) -> list[np.ndarray]:
    levels, count, width = [], degree, size
    while count > 1:
        levels.append(
            sketches.draw_level(generator, kind, degree, (count, width, rank)).astype(np.float64)
        )
        count, width = count // 2, rank
    return levels


class SketchTest(unittest.TestCase):
    KINDS = ("gaussian", "srht")

    def setUp(self):
        self.generator = np.random.default_rng(5)
        x, y = self.generator.standard_normal((2, SIZE))
        x /= np.linalg.norm(x)
        y -= x * (x @ y)
        y /= np.linalg.norm(y)
        self.x, self.y = x, 0.9 * x + 0.19**0.5 * y  # unit vectors, x.y = 0.9

    def products(self, kind: str, degree: int) -> tuple[np.ndarray, np.ndarray]:
        """f(x).f(y) and f(x).f(x) over many draws."""
        rows = np.stack([self.x, self.y])
        samples = [
            sketches.evaluate(draw(self.generator, kind, degree), rows) for _ in range(DRAWS)
        ]
        return np.array([f[0] @ f[1] for f in samples]), np.array([f[0] @ f[0] for f in samples])

    def assert_mean(self, samples: np.ndarray, expected: float, most_relative_error: float):
        """Within 5 standard errors, which must be small enough to tell a wrong scale."""
        error = samples.std() / len(samples) ** 0.5
        self.assertLess(error, most_relative_error * expected)
        self.assertLess(abs(samples.mean() - expected), 5 * error)

    def test_degree_4_estimates_the_eighth_power(self):
        for kind in self.KINDS:
            with self.subTest(kind):
                xy, _ = self.products(kind, 4)
                self.assert_mean(xy, 0.9**4, 0.04)
                # The squares exceed (x.y)^8 by the variance, which falls as 1 / RANK.
                self.assertTrue(0.9**8 < (xy**2).mean() < 2 * 0.9**8, (xy**2).mean())

    def test_degree_4_gaussian_second_moment(self):
        """For a unit vector E[(f.f)^2] is (1 + 8 / r)^3: one factor for each of the three products."""
        _, xx = self.products("gaussian", 4)
        self.assert_mean(xx**2, (1 + 8 / RANK) ** 3, 0.1)

    def test_degree_8(self):
        rows = np.stack([self.x, self.y])
        samples = [
            sketches.evaluate(draw(self.generator, "gaussian", 8), rows) for _ in range(DRAWS)
        ]
        self.assert_mean(np.array([f[0] @ f[1] for f in samples]), 0.9**8, 0.06)

    def test_degree_2_carries_the_authors_factor(self):
        for kind in self.KINDS:
            with self.subTest(kind):
                xy, _ = self.products(kind, 2)
                self.assert_mean(xy, 0.9**2 / RANK, 0.04)

    def test_more_columns_less_variance(self):
        rows = np.stack([self.x, self.y])
        variances = []
        for rank in (16, 256):
            samples = [
                sketches.evaluate(draw(self.generator, "srht", 4, rank=rank), rows)
                for _ in range(200)
            ]
            variances.append(np.var([f[0] @ f[1] for f in samples]))
        self.assertLess(variances[1], variances[0] / 4)

    def test_srht_needs_a_power_of_two(self):
        with self.assertRaisesRegex(ToolError, "power of two, found 24"):
            sketches.draw_level(self.generator, "srht", 2, (2, 24, 8))

    def test_hadamard(self):
        matrix = sketches.hadamard_matrix(16)
        np.testing.assert_array_equal(matrix @ matrix.T, 16 * np.eye(16))


class PerformerTest(unittest.TestCase):
    def test_blocks_of_orthogonal_rows(self):
        omega = sketches.draw_performer_features(np.random.default_rng(2), (70, 32)).astype(
            np.float64
        )
        self.assertEqual(omega.shape, (70, 32))
        for begin in range(0, 70, 32):
            block = omega[begin : begin + 32]
            gram = block @ block.T
            np.testing.assert_allclose(gram, np.diag(np.diag(gram)), atol=1e-4)
        lengths = np.sum(omega**2, axis=1)  # chi-squared of 32 degrees
        self.assertLess(abs(lengths.mean() - 32), 5 * (2 * 32 / 70) ** 0.5)
        self.assertGreater(lengths.std(), 3)

    def test_features_estimate_the_exponential(self):
        generator = np.random.default_rng(3)
        q, k = generator.standard_normal((2, 16)) / 8
        estimates = []
        for _ in range(400):
            omega = sketches.draw_performer_features(generator, (32, 16)).astype(np.float64)
            phi = [np.exp(omega @ x - x @ x / 2) / 32**0.5 for x in (q, k)]
            estimates.append(phi[0] @ phi[1])
        error = np.std(estimates) / len(estimates) ** 0.5
        self.assertLess(error, 0.02)
        self.assertLess(abs(np.mean(estimates) - np.exp(q @ k)), 5 * error)


if __name__ == "__main__":
    unittest.main()
