"""One small run for all tests here."""

import pytest

from tests.training.small import finish, small


@pytest.fixture(scope="package")
def run(tmp_path_factory):
    """Its directory, and the layout of its unrolls."""
    path = tmp_path_factory.mktemp("exports") / "run"
    _, training = finish(small(capacity_steps=400), path)
    return path, training.member.layout
