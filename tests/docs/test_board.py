"""What docs/board.md tells people to do: the commands and options exist, the links lead somewhere.

The board's own commands run under emulation: tests/board/test_page.py.
"""

import pytest
from page import Page, unknown_options

PAGE = Page("board.md")


def test_there_are_commands_to_check():
    assert {"convert", "models", "doctor", "run", "audit"} <= {words[0] for words in PAGE.words_of_commands()}


@pytest.mark.parametrize("words", [*PAGE.words_of_commands()], ids=" ".join)
def test_each_documented_command_and_option_exists(words):
    assert unknown_options(words) == set()


def test_each_link_leads_somewhere():
    assert PAGE.broken_links() == set()
