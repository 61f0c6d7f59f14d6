"""What several pages need."""

import re
import subprocess

import pytest


@pytest.fixture
def verify_unit(need_tool, tmp_path):
    """What systemd says of a unit's text, whose workspace is put where its programs are."""
    analyze = need_tool("systemd-analyze")

    def verify(text):
        for name in re.findall(r"/srv/anima/([^ ]*/bin/[^ ]+)", text):
            program = tmp_path / "anima" / name
            program.parent.mkdir(parents=True, exist_ok=True)
            program.write_text("#!/bin/sh\n")
            program.chmod(0o755)
        path = tmp_path / "anima-batch@.service"
        path.write_text(text.replace("/srv/anima", str(tmp_path / "anima")))
        ended = subprocess.run([analyze, "verify", "--man=no", str(path)], capture_output=True, text=True)
        return ended.returncode, ended.stderr

    return verify
