"""What docs/fleet.md tells people to do: its commands exist, its units are units.

Its certificates are made by tests/fleet/test_tls.py.
"""

import pytest
from page import Page, unknown_options

PAGE = Page("fleet.md")


def test_there_are_commands_to_check():
    assert {"run", "fleet-worker", "models", "status"} <= {words[0] for words in PAGE.words_of_commands()}


@pytest.mark.parametrize("words", [*PAGE.words_of_commands()], ids=" ".join)
def test_each_documented_command_and_option_exists(words):
    assert unknown_options(words) == set()


def test_each_link_leads_somewhere():
    assert PAGE.broken_links() == set()


@pytest.mark.parametrize("unit", PAGE.blocks("ini"), ids=["scheduler", "board"])
def test_systemd_takes_the_units_without_a_word(verify_unit, unit):
    assert verify_unit(unit) == (0, "")
