"""What checks, measures and exports: no run needs it."""
