"""RMSProp as TensorFlow 1 does it (epsilon inside the root, mean square from 1), and a linear learning rate."""

import math
from collections.abc import Sequence


def run(
    param: float,
    grads: Sequence[float],
    learning_rates: Sequence[float],
    decay: float,
    momentum: float,
    epsilon: float,
) -> list[float]:
    """ms <- decay ms + (1 - decay) g^2; mom <- momentum mom + lr g / sqrt(ms + epsilon); p <- p - mom."""
    p, ms, mom = float(param), 1.0, 0.0
    params = []
    for g, lr in zip(grads, learning_rates, strict=True):
        ms = decay * ms + (1.0 - decay) * float(g) ** 2
        mom = momentum * mom + float(lr) * float(g) / math.sqrt(ms + epsilon)
        p = p - mom
        params.append(p)
    return params
