"""From settings to a finished run: `build` makes members, `trainer` and `threads` run them, `launch` starts all of it."""
