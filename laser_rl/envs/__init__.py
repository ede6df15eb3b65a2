"""Environments: Gymnasium's, Atari's and our own, each behind `Environments`; rows come in, actions go out. Never imports torch."""
