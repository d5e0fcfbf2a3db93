"""The forward pass of docs/attention.md in float32 on numpy, layer by layer: what calibration sees of a model.

Attention is one quadratic sum over the tokens of a sequence, so sequences are short (some thousand tokens).
"""

from collections.abc import Callable

import numpy as np

from polysketch_tools.model_config import SKETCH_LEVELS, ModelConfig

# The product of inputs [rows, in] and the matrix `name`: [rows, out].
Product = Callable[[str, np.ndarray], np.ndarray]
# A tensor by its name, as float32.
Tensor = Callable[[str], np.ndarray]


def forward(
    config: ModelConfig, tokens: np.ndarray, tensor: Tensor, product: Product
) -> np.ndarray:
    """Returns the inputs [rows, D] of the output matrix for sequences `tokens` [sequences, n], row by row.

    The products of the layers are those of `product`, each matrix once, in the order of the pass. The model has no decay
    gate: checkpoints of the authors' code have none.
    """
    assert not config.decay_gate
    count, n = tokens.shape
    width = config.emb_dim
    x = tensor("embedding.weight")[tokens]
    if config.sinusoidal_positions:
        x = x + _positions(n, width)
    x = x.reshape(count * n, width)
    for i in range(config.num_layers):
        layer = f"layers.{i}."
        attention = _Attention(config, layer + "attn.", n, tensor, product)
        x += attention.apply(_norm(x, tensor, layer + "attn_norm"))
        hidden = product(layer + "mlp.up.weight", _norm(x, tensor, layer + "mlp_norm"))
        up, gate = np.split(hidden, 2, axis=1)
        x += product(layer + "mlp.down.weight", up * _gelu(gate))
    return _norm(x, tensor, "final_norm")


def _norm(x: np.ndarray, tensor: Tensor, name: str) -> np.ndarray:
    deviation = np.sqrt(x.var(axis=-1, keepdims=True) + np.float32(1e-5))
    y = (x - x.mean(axis=-1, keepdims=True)) / deviation
    return y * tensor(name + ".scale") + tensor(name + ".bias")


_GELU_ROWS = 1024  # rows whose intermediate values stay in cache


def _gelu(x: np.ndarray) -> np.ndarray:
    out = np.empty_like(x)
    for begin in range(0, len(x), _GELU_ROWS):
        rows = x[begin : begin + _GELU_ROWS]
        y = np.float32(np.sqrt(2 / np.pi)) * (rows + np.float32(0.044715) * (rows * rows * rows))
        out[begin : begin + _GELU_ROWS] = np.float32(0.5) * rows * (1 + np.tanh(y))
    return out


def _angles(n: int, width: int) -> np.ndarray:
    thetas = 10000.0 ** (-2 * np.arange(width // 2) / width)
    return np.arange(n)[:, None] * thetas.astype(np.float32).astype(np.float64)


def _positions(n: int, width: int) -> np.ndarray:
    angles = _angles(n, width)
    return np.stack([np.sin(angles), np.cos(angles)], axis=2).reshape(n, width).astype(np.float32)


def _rope(x: np.ndarray) -> np.ndarray:
    """Rotates rows [sequences, n, heads, d]."""
    angles = _angles(x.shape[1], x.shape[-1])
    cos, sin = (f(angles).astype(np.float32)[:, None] for f in (np.cos, np.sin))
    even, odd = x[..., 0::2], x[..., 1::2]
    return np.concatenate([even * cos - odd * sin, odd * cos + even * sin], axis=-1)


class _Attention:
    """The attention of one layer; `prefix` names its tensors."""

    def __init__(
        self, config: ModelConfig, prefix: str, n: int, tensor: Tensor, product: Product
    ):
        self._config, self._prefix, self._n = config, prefix, n
        self._tensor, self._product = tensor, product

    def apply(self, x: np.ndarray) -> np.ndarray:
        """x [rows, D], the normed input. Returns what the layer adds."""
        heads, d = self._config.num_heads, self._config.head_dim
        qkv = self._product(self._prefix + "qkv.weight", x).reshape(-1, self._n, 3, heads, d)
        q, k, v = _rope(qkv[:, :, 0]), _rope(qkv[:, :, 1]), qkv[:, :, 2]
        # Heads before tokens, so that products of heads read rows that lie together.
        q, k, v = (np.ascontiguousarray(rows.swapaxes(1, 2)) for rows in (q, k, v))
        far_q, far_k = self._features(np.stack([q, k]))
        near_q, near_k = self._near(q, "near_q_norm"), self._near(k, "near_k_norm")
        out = np.empty_like(v)
        block = self._config.grain_size or 256
        for i in range(len(v)):
            for begin in range(0, self._n, block):
                now = slice(begin, min(begin + block, self._n))
                weights = self._far_weights(far_q[i, :, now], far_k[i, :, : now.stop])
                if self._config.is_mixed:
                    near = near_q[i, :, now] @ near_k[i, :, now].swapaxes(1, 2)
                    weights[..., now] = np.square(np.square(near))
                weights = np.tril(weights, begin)
                total = self._stabilizer() + weights.sum(axis=-1, keepdims=True)
                out[i, :, now] = weights @ v[i, :, : now.stop] / total
        rows = out.swapaxes(1, 2).reshape(len(x), -1)
        return self._product(self._prefix + "out.weight", rows)

    def _near(self, x: np.ndarray, norm: str) -> np.ndarray | None:
        return _norm(x, self._tensor, self._prefix + norm) if self._config.is_mixed else None

    def _features(self, x: np.ndarray) -> np.ndarray:
        """What _far_weights multiplies, of rows [..., d]."""
        kind = self._config.attention
        if self._config.is_learned:
            return self._learned_sketch(x)
        if self._config.has_qk_norm:
            x = _norm(x, self._tensor, self._prefix + "qk_norm")
        if self._config.is_random:
            return self._random_sketch(x)
        if kind == "linear":
            return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))
        if kind == "performer":
            omega = self._tensor(self._prefix + "omega")
            x = x / np.float32(omega.shape[1] ** 0.25)
            square = (x * x).sum(axis=-1, keepdims=True)
            return np.exp(x @ omega.T - square / 2) / np.float32(np.sqrt(len(omega)))
        return x

    def _far_weights(self, q: np.ndarray, k: np.ndarray) -> np.ndarray:
        """The weights [heads, queries, keys] of queries and keys [heads, ., .], those of later keys too."""
        products = q @ k.swapaxes(1, 2)
        kind = self._config.attention
        if kind == "softmax":
            products /= np.float32(np.sqrt(q.shape[-1]))
            hidden = np.triu(np.ones(products.shape[1:], bool), k.shape[1] - q.shape[1] + 1)
            products[:, hidden] = -np.inf
            return np.exp(products - products.max(axis=-1, keepdims=True))
        if kind in ("linear", "performer"):
            return products
        if self._config.has_coefficients:
            return np.square(self._polynomial(products))
        return products**self._config.power if kind == "polynomial" else np.square(products)

    def _polynomial(self, products: np.ndarray) -> np.ndarray:
        """P of the dot products [heads, queries, keys]."""
        alpha, beta = (np.float32(x) for x in (self._config.polynomial_alpha, self._config.polynomial_beta))
        x = (products + alpha) / beta
        coefficients = self._tensor(self._prefix + "coefficients").T  # [p + 1] or [p + 1, heads]
        value = np.zeros_like(x)
        for a in coefficients[::-1]:
            value = value * x + np.reshape(a, (-1, 1, 1))
        return value

    def _stabilizer(self) -> float:
        kind = self._config.attention
        return 0 if kind == "softmax" else 1e-6 if kind in ("linear", "performer") else 1

    def _learned_sketch(self, x: np.ndarray) -> np.ndarray:
        branches = []
        for branch in (1, 2):
            y = x.reshape(-1, x.shape[-1])
            for level in range(SKETCH_LEVELS):
                name = f"{self._prefix}sketch.branch{branch}.level{level}."
                hidden = self._product(name + "up.weight", _norm(y, self._tensor, name + "norm"))
                y = self._product(name + "down.weight", _gelu(hidden))
            branches.append(y)
        root = np.float32(np.sqrt(self._config.sketch_size))
        return (root * np.tanh(branches[0] * branches[1] / root)).reshape(*x.shape[:-1], -1)

    def _random_sketch(self, x: np.ndarray) -> np.ndarray:
        vectors = [x] * (self._config.power // 2)
        level = 0
        while len(vectors) > 1:
            matrices = self._tensor(f"{self._prefix}sketch.level{level}")
            products = [v @ m for v, m in zip(vectors, matrices)]
            vectors = [a * b for a, b in zip(products[0::2], products[1::2])]
            level += 1
        return vectors[0]
