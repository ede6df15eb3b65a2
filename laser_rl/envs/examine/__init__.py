"""An examination of a user's environment: play it, write down what came, and say what is wrong, where, and how to mend it.

`play` records, `values` and `episodes` are functions from what was recorded to findings, `resources` measures, `stages` says in which
order, `child` runs it in a process of its own, and `watch` keeps an eye on that process: an environment that hangs is a finding too.
"""
