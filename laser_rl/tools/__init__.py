"""What stands around training: checks of environments and of the machine, and exports of what a run has learned or seen.

Nothing below imports this package; a run never loads it.
"""
