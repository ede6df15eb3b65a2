"""A sweep: what its members differ in, and how a population moves on."""
