"""commands.yaml and docs/commands.md have what the documents show, and docs/seeds.md claims no more than that."""

import re
import shlex

from tipcast import api

from .documents import PAGE, ROOT, entries, page, shown


def test_every_command_of_the_documents_has_an_entry() -> None:
    commands, table = set(shown()), set(entries())
    assert sorted(commands - table) == []
    assert sorted(table - commands) == [], "the documents do not show these"


def test_the_page_is_as_written_from_the_table() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m tests.typed"


def test_what_works_ran() -> None:
    """Commands of a row of docs/seeds.md that works ran, or need a GPU, compose, and a test or result is named."""
    table = entries()
    rows = re.findall(r"^\| \d+ \|(.*)\|(.*)\|(.*)\| works \|$", (ROOT / "docs" / "seeds.md").read_text("utf-8"), re.M)
    assert len(rows) > 60
    for _, how, shown_by in rows:
        for command in re.findall(r"`(tipcast [a-z]+(?: [^`]+)?)`", how.replace("\\|", "|")):
            assert table[command].cannot in ("", "GPU"), command
            if table[command].cannot:
                assert "`" in shown_by, command
                assert api.compose_jobs(shlex.split(command)[1], shlex.split(command)[2:])
