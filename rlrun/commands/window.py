"""A window that shows frames, for `rlrun watch RUN_DIR window=true`."""

from __future__ import annotations

import os
import sys
from typing import Any

from rlrun.core.errors import UserError
from rlrun.core.installing import install_line

LARGEST, SMALLEST = 960, 480  # pixels of the longer side of a window


class Window:
    """A window of pygame's. Raises UserError where there is no display, or no pygame."""

    def __init__(self, title: str):
        # pygame would open a driver without a screen in silence, and nobody would see anything.
        if sys.platform.startswith("linux") and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
            raise UserError(
                "window=true needs a display, and there is none (DISPLAY is not set); without it, rlrun watch writes an"
                " mp4 and a gif"
            )
        os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
        try:
            import pygame
        except ImportError:
            raise UserError(f"window=true needs pygame: {install_line('video')}") from None
        self.pygame, self.title = pygame, title
        try:
            pygame.display.init()
        except pygame.error as error:
            raise UserError(f"window=true cannot open a window: {error}") from None
        self.clock = pygame.time.Clock()
        self.screen: Any = None

    def __enter__(self) -> Window:
        return self

    def __exit__(self, *error: object) -> None:
        self.pygame.display.quit()

    def show(self, frame: Any, rate: float) -> bool:
        """Shows a frame [H, W, 3] for 1/rate seconds. Returns False once the window is closed or Escape is pressed."""
        pygame = self.pygame
        height, width = frame.shape[:2]
        if self.screen is None:
            longer = max(height, width)
            scale = max(1, SMALLEST // longer) if longer < LARGEST else LARGEST / longer
            self.screen = pygame.display.set_mode((round(width * scale), round(height * scale)))
            pygame.display.set_caption(self.title)
        picture = pygame.surfarray.make_surface(frame.swapaxes(0, 1))
        self.screen.blit(pygame.transform.scale(picture, self.screen.get_size()), (0, 0))
        pygame.display.flip()
        self.clock.tick(rate)
        return not any(
            event.type == pygame.QUIT or (event.type == pygame.KEYDOWN and event.key == pygame.K_ESCAPE)
            for event in pygame.event.get()
        )
