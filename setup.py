"""Puts conf/ and tuned/ into the wheel as rlrun/_data/, where rlrun/config/paths.py finds them.

Everything else is in pyproject.toml.
"""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithData(build_py):
    def run(self):
        super().run()
        if not self.editable_mode:
            for folder in ("conf", "tuned"):
                shutil.copytree(folder, Path(self.build_lib) / "rlrun" / "_data" / folder, dirs_exist_ok=True)


setup(cmdclass={"build_py": BuildWithData})
