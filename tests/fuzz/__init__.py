"""Every file that we read, damaged and forged at random: it is refused by an error of ours, or read. Nothing else, and nothing grows.

`make fuzz` feeds 100,000 inputs; `python -m tests.fuzz --target manifest --first 1234 --inputs 1` repeats a single one.
"""
