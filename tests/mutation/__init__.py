"""Mutation testing: the report, and why survivors survive."""
