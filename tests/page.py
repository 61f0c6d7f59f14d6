"""A page of docs/: its blocks, the commands in them, its links."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import typer

from anima_batch.cli import app

DOCS = Path(__file__).parents[1] / "docs"
COMMANDS = typer.main.get_command(app)


class Page:
    """The page of that name, or the part of it under one title."""

    def __init__(self, name: str, title: str | None = None) -> None:
        text = (DOCS / name).read_text(encoding="utf-8")
        if title is not None:
            assert f"## {title}\n" in text
            text = text.partition(f"## {title}\n")[2].partition("\n## ")[0]
        self.text = text

    def blocks(self, language: str) -> list[str]:
        """The content of the fenced blocks of that language, without their indentation."""
        found = re.findall(rf"^( *)```{language}\n(.*?)^\1```", self.text, re.DOTALL | re.MULTILINE)
        return [re.sub(rf"^{indent}", "", block, flags=re.MULTILINE) for indent, block in found]

    def shell_lines(self) -> list[str]:
        """Every line of the shell blocks."""
        return [line for block in self.blocks("sh") for line in block.splitlines() if line]

    def words_of_commands(self) -> Iterator[list[str]]:
        """The words of each anima-batch command in a block, and of each `inline one` that begins with its name."""
        for line in self.shell_lines():
            for match in re.finditer(r"(?:^|[ /])anima-batch ([a-z][^'|&]*)", line):
                yield shlex.split(match[1])
        for text in re.findall(r"`([^`\n]+)`", self.text):
            words = text.removeprefix("anima-batch ").split()
            if words[0] in COMMANDS.commands:  # type: ignore[attr-defined]
                yield words

    def broken_links(self) -> set[str]:
        """Links within the page and to files beside it that lead nowhere."""
        anchors = {_anchor(title) for title in re.findall(r"^#+ (.+)$", self.text, re.MULTILINE)}
        links = re.findall(r"\]\(([^):]+)\)", self.text)
        assert links
        return {link for link in links if not _leads_somewhere(link, anchors)}


def _leads_somewhere(link: str, anchors: set[str]) -> bool:
    path, _, anchor = link.partition("#")
    if not path:
        return anchor in anchors
    target = DOCS / path
    if not anchor:
        return target.is_file()
    titles = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), re.MULTILINE)
    return anchor in map(_anchor, titles)


def _anchor(title: str) -> str:
    """As GitHub makes it."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def unknown_options(words: list[str]) -> set[str]:
    """The options among the words of a command that it has not; fails for a command that does not exist."""
    command = COMMANDS
    while hasattr(command, "commands"):
        _, command, words = command.resolve_command(typer.Context(command), words)  # type: ignore[assignment]
    options = {name for parameter in command.params for name in parameter.opts}
    return {word for word in words if word.startswith("--")} - options
