"""Environments: Gymnasium's, Atari's and our own, each behind `Environments`; actions go in, rows come out. Never imports torch."""
