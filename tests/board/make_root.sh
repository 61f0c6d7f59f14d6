#!/usr/bin/env bash
# Make a folder with what a board has: Debian for arm64 with Python 3.11, the wheels that anima-batch needs there, and
# librknnrt_stub.c in place of librknnrt.so. Nothing of the system is changed; about 350 MB.
#   make_root.sh FOLDER [LITE2_VERSION]
# Needs qemu-user-static, gcc-aarch64-linux-gnu, libc6-dev-arm64-cross, and pip in $PYTHON (python3).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
root=$(cd "$1" && pwd)
lite2=${2:-2.3.2}
apt=$root.apt
mirror='deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian bookworm main'

# A package manager of its own, for another architecture, that installs nothing.
mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial"
: >"$apt/status"
echo "$mirror" >"$apt/sources.list"
apt_get() {
  apt-get -qq -o Dir::State="$apt" -o Dir::State::lists="$apt/lists" -o Dir::State::status="$apt/status" \
    -o Dir::Cache="$apt/cache" -o Dir::Etc::sourcelist="$apt/sources.list" -o Dir::Etc::sourceparts=- \
    -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User= -o Debug::NoLocking=1 "$@"
}
apt_get update
apt_get install --yes --download-only --no-install-recommends python3.11 libstdc++6
for package in "$apt"/cache/archives/*.deb; do dpkg-deb -x "$package" "$root"; done
rm -rf "$apt"

# onnxruntime 1.32 ends by SIGSEGV when it is imported under qemu-user 7.2, on each CPU that qemu knows; 1.25 does not.
"${PYTHON:-python3}" -m pip install --quiet --disable-pip-version-check --target "$root/usr/lib/python3/dist-packages" \
  --upgrade --only-binary=:all: --implementation cp --python-version 3.11 --abi cp311 --abi abi3 --abi none \
  --platform manylinux2014_aarch64 --platform manylinux_2_17_aarch64 --platform manylinux_2_27_aarch64 \
  --platform manylinux_2_28_aarch64 \
  numpy==1.26.4 onnxruntime==1.25.1 pillow psutil pydantic rich ruamel.yaml safetensors 'setuptools<81' tokenizers \
  tomli typer xxhash "rknn-toolkit-lite2==$lite2"

# What the wheel looks for before it believes that it is on a board and not in a container.
mkdir -p "$root/proc/device-tree" "$root/dev/dri"
printf 'radxa,rock-5c\0rockchip,rk3588s\0' >"$root/proc/device-tree/compatible"
touch "$root/dev/dri/renderD129"

aarch64-linux-gnu-gcc -std=gnu11 -O2 -fPIC -shared -Wall -Wextra -Werror -o "$root/usr/lib/librknnrt.so" \
  "$here/librknnrt_stub.c"

# The interpreter's own name must be a program that the kernel can start, since anima-batch starts its worker by it.
cat >"$root/usr/bin/board-python" <<END
#!/bin/sh
exec qemu-aarch64-static -L "$root" -0 "\$0" "$root/usr/bin/python3.11" "\$@"
END
chmod +x "$root/usr/bin/board-python"
"$root/usr/bin/board-python" -c 'import onnxruntime, rknnlite.api'
