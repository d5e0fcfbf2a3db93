"""tests/data/polynomial_square is what polynomial_square_goldens.py computes."""

import unittest

import support

import numpy as np

from polynomial_square_goldens import DEGREES, attend, make_case, make_polynomial_square


class PolynomialSquareGoldensTest(support.ToolTest):
    def test_the_files_of_the_tree(self):
        make_polynomial_square(self.dir)
        for degree in DEGREES:
            self.assert_made_as_kept(support.ROOT / "tests/data/polynomial_square" / f"degree{degree}.safetensors")

    def test_degree_one_is_a_product_of_rows(self):
        """(a_0 + a_1 x)^2 = <[c, f q'], [1, k']>^2, which affine_square folds into a state."""
        rows = {n: a.astype(np.float64) for n, a in make_case(1, np.random.default_rng(1)).items()}
        constants, slopes = rows["coefficients"].T[:, :, None, None]
        factors = slopes / rows["beta"]
        ones = np.ones((*rows["key"].shape[:-1], 1))
        q = np.concatenate([(constants + factors * rows["alpha"]) * ones, factors * rows["query"]], axis=-1)
        k = np.concatenate([ones, rows["key"]], axis=-1)
        weights = np.tril((q @ k.swapaxes(-1, -2)) ** 2)
        out = weights @ rows["value"] / (1 + weights.sum(-1, keepdims=True))
        np.testing.assert_allclose(out, attend(rows), rtol=0, atol=1e-12)


class RootsTest(unittest.TestCase):
    def test_only_odd_degrees_have_a_real_root(self):
        """docs/attention.md: whether 1 + x + ... + x^p can give a key no weight."""
        for degree in range(1, 9):
            roots = np.roots(np.ones(degree + 1))
            real = np.abs(roots.imag).min() < 1e-9
            self.assertEqual(real, degree % 2 == 1, degree)


if __name__ == "__main__":
    unittest.main()
