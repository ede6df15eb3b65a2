"""The paper's experiments and its evaluation protocol. Nothing that trains imports this package."""
