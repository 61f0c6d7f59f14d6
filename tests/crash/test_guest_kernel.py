"""The guest's first files."""

import subprocess

from crash.guest_kernel import Kernel, write_first_files

NAMES = ("crc32c_generic", "crc32_generic", "virtio_pci", "virtio_blk", "virtio_console", "ext4", "f2fs")


def test_the_first_files_hold_the_modules_after_those_that_they_need(tmp_path, need_tool):
    busybox = need_tool("busybox")
    needs = {"ext4": b"jbd2,crc16", "jbd2": b"crc16"}
    modules = {}
    for name in (*NAMES, "jbd2", "crc16", "unused"):
        modules[name] = tmp_path / f"{name}.ko"
        modules[name].write_bytes(b"\x7fELF\0depends=" + needs.get(name, b"") + b"\0")
    archive = tmp_path / "archive"
    write_first_files(Kernel(tmp_path / "vmlinuz", modules), archive, ["/python", "-c", "1 + 1"], {"A": "b c"})
    with archive.open("rb") as file:
        subprocess.run([busybox, "cpio", "-i", "-d"], stdin=file, cwd=tmp_path, check=True, capture_output=True)
    script = (tmp_path / "init").read_text(encoding="utf-8")
    loaded = script.partition("for module in ")[2].partition(";")[0].split()
    assert sorted(loaded) == sorted([*NAMES, "jbd2", "crc16"])
    assert loaded.index("crc16") < loaded.index("jbd2") < loaded.index("ext4")
    assert (tmp_path / "modules/jbd2").read_bytes() == modules["jbd2"].read_bytes()
    assert "export A='b c'\n" in script
    assert "switch_root /root /python -c '1 + 1'" in script
