"""The agent: what acts, what is minimised, what learns."""
