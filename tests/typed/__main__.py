"""``python -m tests.typed`` writes docs/commands.md."""

from .documents import PAGE, page

PAGE.write_text(page(), encoding="utf-8")
