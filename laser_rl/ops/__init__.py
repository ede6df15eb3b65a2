"""The mathematics of LASER: pure functions of tensors, one topic a module.

`ops` knows no configuration, no device, no logger and no environment. Read it in the order of docs/reading-guide.md.
"""
