"""Puts conf/ and tuned/ into the wheel as rlrun/_data/, where rlrun/config/paths.py finds them.

Everything else is in pyproject.toml.
"""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

NO_PICTURES = shutil.ignore_patterns("*.png", "*.html", "*.md")  # drawn from tuned/results/*.json, which are there


class BuildWithData(build_py):
    def run(self):
        super().run()
        if not self.editable_mode:
            for folder in ("conf", "tuned"):
                place = Path(self.build_lib) / "rlrun" / "_data" / folder
                shutil.copytree(folder, place, ignore=NO_PICTURES, dirs_exist_ok=True)


setup(cmdclass={"build_py": BuildWithData})
