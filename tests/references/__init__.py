"""Naive float64 twins of the package's formulas: slow, explicit, and independent of the code under test."""
