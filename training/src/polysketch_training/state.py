"""What a model carries from one chunk of a sequence to the next: dataclasses of tensors."""

import dataclasses

import torch


class _Tensors:
    """A dataclass whose fields are tensors, None, or lists of such dataclasses."""

    def map(self, function):
        """Returns a copy with `function` applied to every tensor."""

        def apply(value):
            if isinstance(value, torch.Tensor):
                return function(value)
            if isinstance(value, list):
                return [apply(item) for item in value]
            return value.map(function) if isinstance(value, _Tensors) else value

        fields = {field.name: apply(getattr(self, field.name)) for field in dataclasses.fields(self)}
        return type(self)(**fields)

    def detach(self):
        """Returns the same values without their history: gradients end here."""
        return self.map(torch.Tensor.detach)


@dataclasses.dataclass
class FoldedState(_Tensors):
    """A layer of a recurrent kind: the sums over full blocks, and the block buffer of the tokens after them.

    B rows, H heads, F features, d the head size, m the tokens of the block buffer: position modulo block, the same in
    all rows. Rows of zeros in the buffer have no weight, so that a sequence may start within a block.
    """

    sums: torch.Tensor  # S [B, H, F, d]
    normalizer: torch.Tensor  # z [B, H, F]
    near_k: torch.Tensor | None  # [B, H, m, .]; mixed kinds only
    far_k: torch.Tensor  # sketches or features [B, H, m, .]
    v: torch.Tensor  # [B, H, m, d]
    log_decay: torch.Tensor | None  # [B, H, m]; with a decay gate only


@dataclasses.dataclass
class CacheState(_Tensors):
    """A layer of a KV kind: every key and value [B, H, m, d]."""

    k: torch.Tensor
    v: torch.Tensor


@dataclasses.dataclass
class ModelState(_Tensors):
    """The state of all layers, and the position [B] (int64) of the next token of each row."""

    layers: list[FoldedState] | list[CacheState]
    positions: torch.Tensor

    def reset_rows(self, rows: torch.Tensor, positions: torch.Tensor) -> "ModelState":
        """Returns a state in which the rows of the mask `rows` [B] are empty sequences at `positions` [B].

        Recurrent kinds only. The new positions must be equal to the old ones modulo the block.
        """
        if any(isinstance(layer, CacheState) for layer in self.layers):
            raise ValueError("expected the state of a recurrent kind: rows of a KV cache have one length")

        def clear(x):
            return x.masked_fill(rows.reshape(-1, *[1] * (x.dim() - 1)), 0)

        state = self.map(clear)
        state.positions = torch.where(rows, positions, self.positions)
        return state
