"""The TensorBoard logger, which writes event files to the run directory."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

WRITER = "_AsyncWriterThread"  # TensorBoard's thread, which raises where the disk is full or the folder is gone


def _say_errors_once() -> None:
    """Keeps Python from printing a traceback when TensorBoard's thread fails. Its next caller gets the error, too."""
    before = threading.excepthook
    if getattr(before, "says_once", False):
        return

    def other_errors(args: Any) -> None:
        if type(args.thread).__name__ != WRITER:
            before(args)

    other_errors.says_once = True  # type: ignore[attr-defined]
    threading.excepthook = other_errors


class TensorBoard:
    def __init__(self, directory: Path, resume_at: int | None, again: Sequence[dict[str, Any]] | None = None):
        """resume_at: env steps of the restored checkpoint. again: its rows, if others of the same step are hidden."""
        from torch.utils.tensorboard import SummaryWriter

        _say_errors_once()
        # purge_step hides what a killed run logged after its last checkpoint, so that curves do not jump back.
        first = None if resume_at is None else resume_at + (again is None)
        self.writer = SummaryWriter(str(directory), purge_step=first)
        for row in again or ():
            self.log(row)

    def log(self, row: dict[str, Any]) -> None:
        for name, value in row.items():
            if name != "env_steps" and isinstance(value, int | float):  # a callback may put texts into a row
                self.writer.add_scalar(name, value, row["env_steps"])

    def draw(self, steps: int, histograms: Mapping[str, np.ndarray]) -> None:
        """Writes histograms of these numbers."""
        for name, values in histograms.items():
            self.writer.add_histogram(name, values, steps)

    def show(self, steps: int, file: Path) -> None:
        """Shows a PNG or GIF as it is, so that a GIF moves. Its tag is the name of its folder."""
        from PIL import Image
        from tensorboard.compat.proto.summary_pb2 import Summary

        with Image.open(file) as picture:
            width, height = picture.size
        image = Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=file.read_bytes())
        value = Summary.Value(tag=file.parent.name, image=image)
        assert self.writer.file_writer is not None  # it is closed by close() alone
        self.writer.file_writer.add_summary(Summary(value=[value]), steps)

    def close(self, status: str, summary: dict[str, Any]) -> None:
        self.writer.close()


class Hidden:
    """Hides what TensorBoard shows of steps that a run takes again without logging there, and writes nothing else."""

    def __init__(self, directory: Path, resume_at: int, again: Sequence[dict[str, Any]] | None = None):
        TensorBoard(directory, resume_at, again).close("", {})

    def log(self, row: dict[str, Any]) -> None:
        pass

    def close(self, status: str, summary: dict[str, Any]) -> None:
        pass


def has_events(directory: Path) -> bool:
    """Whether a run has logged to TensorBoard."""
    return any(directory.glob("events.out.tfevents.*"))
