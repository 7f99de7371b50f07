"""Writes data sets for tests."""

import pytest
from datasets_of_tests import facts

from rlrun.datasets.parquet import Writer


@pytest.fixture
def written(tmp_path):
    """write(trajectories, facts) -> folder"""

    def write(trajectories, facts_=None, folder="set", **options):
        writer = Writer(tmp_path / folder, facts_ or facts(), **options)
        for one in trajectories:
            writer.write(one)
        writer.close()
        return tmp_path / folder

    return write
