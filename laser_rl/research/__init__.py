"""The paper's experiments, protocol, tables and theory. Nothing that trains imports this package."""
