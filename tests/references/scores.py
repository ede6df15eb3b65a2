"""Scores of a mixture of tasks, from all returns, loops and all."""


def normalised(mean, random, best):
    return (mean - random) / (best - random)


def naive_scores(returns, references):
    """`returns`: for each task its episodes' returns; `references`: (random, best) of each. None where there is no episode."""
    means, scores = [], []
    for own, (random, best) in zip(returns, references, strict=True):
        total = 0.0
        for value in own:
            total += value
        means.append(total / len(own) if own else None)
        scores.append(normalised(means[-1], random, best) if own else None)
    return means, scores


def naive_median(values):
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def naive_mean_capped(values):
    total = 0.0
    for value in values:
        total += min(value, 1.0)
    return total / len(values)
