"""The learning rate of each step: a linear warm-up, then half a cosine."""

import math

from polysketch_training.presets import Recipe


def learning_rate(recipe: Recipe, step: int) -> float:
    """Returns the rate of step 0 .. steps - 1: learning_rate after the warm-up, its final share at the end."""
    if step < recipe.warmup_steps:
        return recipe.learning_rate * (step + 1) / recipe.warmup_steps
    done = (step - recipe.warmup_steps) / max(1, recipe.steps - 1 - recipe.warmup_steps)
    share = recipe.final_learning_rate
    return recipe.learning_rate * (share + (1 - share) * (1 + math.cos(math.pi * min(1.0, done))) / 2)
