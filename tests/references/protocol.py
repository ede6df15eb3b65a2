"""The paper's evaluation protocol from raw episodes, loops and all: nothing is an array, and NaN is None."""

from tests.references.scores import naive_median, normalised


def naive_buckets(episodes, bucket_frames, total_frames):
    """`episodes`: pairs of (frames at the end, return). The mean of each bucket; an empty one repeats the last, None before the first."""
    found, last, begin = [], None, 0
    while begin < total_frames:
        inside = [value for frames, value in episodes if begin < frames <= begin + bucket_frames]
        if inside:
            last = sum(inside) / len(inside)
        found.append(last)
        begin += bucket_frames
    return found


def naive_agent(tasks, references, bucket_frames, total_frames):
    """`tasks`: the episodes of each. The median over tasks at each bucket, None until all have one."""
    curves = [naive_buckets(own, bucket_frames, total_frames) for own in tasks]
    medians = []
    for values in zip(*curves, strict=True):
        if None in values:
            medians.append(None)
            continue
        scores = [normalised(value, *reference) for value, reference in zip(values, references, strict=True)]
        medians.append(naive_median(scores))
    return medians


def naive_sweep(members, references, bucket_frames, total_frames):
    """`members`: the tasks of each. Median first; then at each bucket the best of those who have one."""
    curves = [naive_agent(tasks, references, bucket_frames, total_frames) for tasks in members]
    return [max((one for one in values if one is not None), default=None) for values in zip(*curves, strict=True)]
