"""The commands that README.md and docs show, and commands.yaml: what runs each of them, or why it
cannot run.
"""

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "commands.md"
PROGRAMS = "tipcast|mlflow|python|make|dask|pip|docker|helm|curl|cp|eval"
COMMAND = re.compile(rf"(?:[A-Z_]+=\S+ )*(?:{PROGRAMS}) +\S")
PROMPT = re.compile(r"^\w+\$ +")
COMMENT = re.compile(r"\s+# .*$")
TEXTS = re.compile(r"```(?:python|yaml|toml|json)\n.*?```", re.DOTALL)

HEAD = """# Commands that run as typed

Every command of README.md and these pages. `make test-typed` gives those of the first table to a
shell, in a fresh folder that has the files, runs and models that they name, and looks at what they
leave.
`python -m tests.typed` writes this page from `tests/typed/commands.yaml`.

**{} ran, {} cannot run on a machine of two cores without more.**

## Ran

| command | words added, for the time | leaves | shown in |
|---|---|---|---|
"""


@dataclass(frozen=True)
class Entry:
    """How a command of the documents is run, as commands.yaml says."""

    command: str
    cannot: str = ""
    more: str = ""
    leaves: list[str] = field(default_factory=list)
    stands: dict[str, str] = field(default_factory=dict)
    first: str = ""
    beside: list[str] = field(default_factory=list)
    ready: str = ""
    serves: str = ""
    bucket: bool = False
    sample: str = ""

    def typed(self, ids: dict[str, str]) -> str:
        """Return what the shell gets, with ids of runs in place of their names."""
        text = self.command
        for word, value in self.stands.items():
            text = text.replace(word, value)
        return with_ids(f"{text} {self.more}".rstrip(), ids)


def with_ids(text: str, ids: dict[str, str]) -> str:
    """Return a text with ids in place of their names in angle brackets."""
    for name, value in ids.items():
        text = text.replace(f"<{name}>", value)
    return text


def commands_of_pages() -> dict[str, list[str]]:
    """Return command -> the pages that show it, in their order; blanks between words count once,
    comments not.
    """
    found: dict[str, list[str]] = {}
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for command in dict.fromkeys(
            _of_page(path.read_text(encoding="utf-8")) if path != PAGE else []
        ):
            found.setdefault(command, []).append(path.name)
    return found


def _of_page(text: str) -> Iterator[str]:
    text = TEXTS.sub("", text)
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    for block in blocks + re.findall(r"(?:^    .*\n)+", text, re.MULTILINE):
        lines = iter(block.replace("\\\n", " ").splitlines())
        for line in lines:
            command = COMMENT.sub("", PROMPT.sub("", line.strip()))
            if COMMAND.match(command):
                while command.count("'") % 2:  # a text in quotes goes on
                    command += " " + next(lines).strip()
                yield re.sub(r"\s+", " ", command).strip()
    for row in re.findall(r"^\|.*", text, re.MULTILINE):
        yield from (
            word.replace("\\|", "|")
            for word in re.findall(r"`([^`]+)`", row)
            if COMMAND.match(word)
        )


def entries() -> dict[str, Entry]:
    """Return command -> its entry in commands.yaml, where commands that are treated alike stand
    together.
    """
    groups: list[dict[str, Any]] = yaml.safe_load(
        (Path(__file__).parent / "commands.yaml").read_text(encoding="utf-8")
    )
    found: dict[str, Entry] = {}
    for group in groups:
        like = group.pop("like", None)
        for command in group.pop("commands", None) or [
            new for new in commands_of_pages() if re.search(like, new)
        ]:
            assert like or command not in found, f"two entries: {command}"
            found.setdefault(command, Entry(command, **group))
    return found


def sample_lines(name: str) -> list[str]:
    """Return patterns of the lines that a picture of a terminal shows of a training's output, from
    the run to its last phase; numbers and ids may be others.
    """
    picture = (ROOT / name).read_text(encoding="utf-8")
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", picture)
    lines = [html.unescape(text).replace("\N{NO-BREAK SPACE}", " ").strip() for text in texts]
    (first,) = (at for at, line in enumerate(lines) if line.startswith("run  "))
    (last,) = (at for at, line in enumerate(lines) if line.startswith("log  "))
    return [_pattern(line) for line in lines[first : last + 1] if line]


def _pattern(line: str) -> str:
    """Return a pattern of a line with any numbers, ids and widths of gaps."""
    words = re.split(r"([0-9a-f]{32}| +|\d(?:[\d,.]*\d)?)", line)
    patterns = []
    for word in words:
        if re.fullmatch("[0-9a-f]{32}", word):
            patterns.append("[0-9a-f]{32}")
        elif word.startswith(" "):
            patterns.append(" +")
        elif word[:1].isdigit():
            patterns.append(r"\d[\d,.]*")
        else:
            patterns.append(re.escape(word))
    # of more cores there may be more of them
    return re.sub(r"\b(worker|thread)s?\b", r"\1s?", "".join(patterns))


def page() -> str:
    """Return docs/commands.md: what ran as typed, and what cannot run on a machine without more."""
    pages = commands_of_pages()
    table = entries().values()
    ran = [entry for entry in table if not entry.cannot]
    lines = []
    for entry in ran:
        leaves = ", ".join(map(_code, filter(None, [*entry.leaves, entry.serves])))
        added = _code(entry.more) if entry.more else ""
        places = ", ".join(pages.get(entry.command, []))
        lines.append(f"| {_code(entry.command)} | {added} | {leaves} | {places} |")
    lines += ["", "## Cannot", "", "| command | needs | shown in |", "|---|---|---|"]
    for entry in table:
        if entry.cannot:
            places = ", ".join(pages.get(entry.command, []))
            lines.append(f"| {_code(entry.command)} | {entry.cannot} | {places} |")
    return HEAD.format(len(ran), len(table) - len(ran)) + "\n".join(lines) + "\n"


def _code(text: str) -> str:
    return "`" + text.replace("|", "\\|") + "`"
