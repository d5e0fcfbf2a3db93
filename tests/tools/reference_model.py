"""The forward pass of docs/attention.md in float64, as one quadratic sum: what a converted model must compute."""

import numpy as np


def forward(leaves: dict[str, np.ndarray], config: dict, tokens, sketches=None, far_masses=None) -> np.ndarray:
    """Returns the logits [n, V]. leaves: Flax path -> array; sketches: of the random kinds, [2, d, r] of each layer.

    far_masses: a list that gets the far masses [n, heads] of each layer."""
    leaves = {path: np.float64(array) for path, array in leaves.items()}
    embedding = leaves["wte/embedding"]
    x = embedding[tokens] + _positions(len(tokens), embedding.shape[1])
    for i in range(config["num_layers"]):
        block = {p.split("/", 1)[1]: a for p, a in leaves.items() if p.startswith(f"Block_{i}/")}
        sketch = None if sketches is None else np.float64(sketches[i])
        x = x + _attention(_norm(x, block, "ln_1"), block, config, sketch, far_masses)
        up, gate = np.split(_norm(x, block, "ln_2") @ block["ff/Dense_0/kernel"], 2, axis=1)
        x = x + (up * _gelu(gate)) @ block["ff/Dense_1/kernel"]
    return _norm(x, leaves, "ln") @ embedding.T + leaves["softmax_bias"]


def next_logprobs(logits: np.ndarray, tokens) -> np.ndarray:
    """Returns log p of each token after the first, given all tokens before it."""
    top = logits.max(axis=1, keepdims=True)
    logprobs = logits - top - np.log(np.exp(logits - top).sum(axis=1, keepdims=True))
    return logprobs[np.arange(len(tokens) - 1), tokens[1:]]


def _norm(x, leaves, name):
    deviation = np.sqrt(x.var(axis=-1, keepdims=True) + 1e-5)
    return (x - x.mean(axis=-1, keepdims=True)) / deviation * leaves[name + "/scale"] + leaves[
        name + "/bias"
    ]


def _gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def _positions(n: int, width: int):
    angles = np.arange(n)[:, None] * 10000.0 ** (-np.arange(width // 2) / (width // 2))
    return np.stack([np.sin(angles), np.cos(angles)], axis=2).reshape(n, width)


def _rope(x):
    n, d = x.shape
    angles = np.arange(n)[:, None] * 10000.0 ** (-2 * np.arange(d // 2) / d)
    even, odd = x[:, 0::2], x[:, 1::2]
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([even * cos - odd * sin, odd * cos + even * sin], axis=1)


def _attention(x, block, config, sketch, far_masses):
    heads = config["num_heads"]
    qkv = (x @ block["attn/Dense_0/kernel"]).reshape(len(x), 3, heads, -1)
    number = np.arange(len(x)) // (config["grain_size"] or 256)
    outputs, masses = [], []
    for head in range(heads):
        q, k, v = _rope(qkv[:, 0, head]), _rope(qkv[:, 1, head]), qkv[:, 2, head]
        weights, stabilizer = _weights(q, k, block, config, sketch, head)
        weights = np.tril(weights)
        total = stabilizer + weights.sum(axis=1, keepdims=True)
        outputs.append(weights @ v / total)
        masses.append(np.sum(weights, axis=1, where=number[:, None] != number) / total[:, 0])
    if far_masses is not None:
        far_masses.append(np.stack(masses, axis=1))
    return np.concatenate(outputs, axis=1) @ block["attn/Dense_1/kernel"]


def _weights(q, k, block, config, sketch, head):
    """Returns the weights of all pairs [n, n] and the stabiliser."""
    kind, d = config["attention"], q.shape[1]
    if kind == "softmax":
        return np.exp(q @ k.T / np.sqrt(d)), 0
    if kind == "linear":
        return _elu_plus_one(q) @ _elu_plus_one(k).T, 1e-6
    if kind == "performer":
        omega = block["attn/omega"]
        return _positive_features(q, omega) @ _positive_features(k, omega).T, 1e-6
    near_q, near_k = q, k
    q, k = (_norm(rows, block, "attn/pre_attn_layer") for rows in (q, k))
    if kind in ("polynomial_square", "affine_square"):
        return _polynomial(q @ k.T, block, config, head) ** 2, 1
    if kind in ("polynomial", "symmetric_power"):
        return (q @ k.T) ** (config["power"] if kind == "polynomial" else 2), 1
    far = ((q @ sketch[0] * (q @ sketch[1])) @ (k @ sketch[0] * (k @ sketch[1])).T) ** 2
    if kind == "random_sketch":
        return far, 1
    assert kind == "random_sketch_mixed", kind
    near_q, near_k = _norm(near_q, block, "attn/LayerNorm_0"), _norm(
        near_k, block, "attn/LayerNorm_1"
    )
    number = np.arange(len(q)) // config["grain_size"]
    return np.where(number[:, None] == number, (near_q @ near_k.T) ** 4, far), 1


def _polynomial(products, block, config, head):
    """P of (q'.k' + alpha) / beta, with the coefficients of the layer [p + 1] or of each head [H, p + 1]."""
    coefficients = block["attn/coefficients"]
    of_head = coefficients if coefficients.ndim == 1 else coefficients[head]
    head_dim = config["emb_dim"] // config["num_heads"]
    x = (products + (config.get("alpha") or 0)) / (config.get("beta") or head_dim)
    return sum(a * x**i for i, a in enumerate(of_head))


def _elu_plus_one(x):
    return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))


def _positive_features(x, omega):
    x = x / omega.shape[1] ** 0.25
    return np.exp(x @ omega.T - (x**2).sum(axis=1, keepdims=True) / 2) / np.sqrt(len(omega))
