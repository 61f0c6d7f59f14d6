"""What a machine says of itself in /proc, /sys, /run, /dev and /usr/lib: read, not judged."""

from __future__ import annotations

from dataclasses import dataclass

from anima_batch.doctor.mounts import Mount, parse_mounts
from anima_batch.doctor.tree import LIBRARY_BYTES, TABLE_BYTES, Reading, Tree

RUNTIME = "/usr/lib/librknnrt.so"  # the only place where lite2 looks
_RUNTIME_ELSEWHERE = ("/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/local/lib", "/lib")

# The vendor's driver names itself in capitals to the platform bus, and the devices of its DRM nodes name it in turn.
VENDOR_DRIVER, MAINLINE_DRIVER = "RKNPU", "rocket"


@dataclass(frozen=True, slots=True)
class Node:
    """A device file through which the NPU is reached."""

    path: str
    usable: bool


@dataclass(frozen=True, slots=True)
class Frequency:
    """What devfreq says of the NPU, in Hz."""

    folder: str
    current: Reading
    available: Reading
    governor: Reading


@dataclass(frozen=True, slots=True)
class Zone:
    """A temperature sensor; thousandths of a degree Celsius."""

    kind: Reading
    temperature: Reading


@dataclass(frozen=True, slots=True)
class Machine:
    """All that is read; nothing in it is understood yet."""

    compatible: Reading
    model: Reading
    kernel: Reading
    vendor_driver: bool
    mainline_driver: bool
    driver_versions: tuple[Reading, ...]
    nodes: tuple[Node, ...]
    runtime: Reading
    runtime_elsewhere: str | None
    frequency: Frequency | None
    loads: tuple[Reading, ...]
    memory: Reading
    swaps: Reading
    governors: tuple[Reading, ...]
    zones: tuple[Zone, ...]
    mount_table: Reading
    mounts: tuple[Mount, ...]
    synchronized: bool


def read_machine(tree: Tree) -> Machine:
    """Everything, in some ten milliseconds; no fault of a file is more than a Reading that says so."""
    table = _read_first(tree, "/proc/self/mountinfo", "/proc/mounts")
    return Machine(
        compatible=tree.read("/proc/device-tree/compatible"),
        model=tree.read("/proc/device-tree/model"),
        kernel=tree.read("/proc/sys/kernel/osrelease"),
        vendor_driver=tree.has(f"/sys/bus/platform/drivers/{VENDOR_DRIVER}") or tree.has("/sys/module/rknpu"),
        mainline_driver=tree.has(f"/sys/bus/platform/drivers/{MAINLINE_DRIVER}") or tree.has("/sys/module/rocket"),
        driver_versions=tuple(map(tree.read, ("/sys/kernel/debug/rknpu/version", "/sys/module/rknpu/version"))),
        nodes=_find_nodes(tree),
        runtime=tree.read(RUNTIME, LIBRARY_BYTES),
        runtime_elsewhere=_find_runtime(tree),
        frequency=_find_frequency(tree),
        loads=tuple(map(tree.read, ("/sys/kernel/debug/rknpu/load", "/proc/rknpu/load"))),
        memory=tree.read("/proc/meminfo"),
        swaps=tree.read("/proc/swaps"),
        governors=_read_governors(tree),
        zones=_read_zones(tree),
        mount_table=table,
        mounts=parse_mounts(table.text),
        synchronized=tree.has("/run/systemd/timesync/synchronized"),
    )


def _read_first(tree: Tree, *paths: str) -> Reading:
    """The first that can be read, else the first."""
    readings = [tree.read(path, TABLE_BYTES) for path in paths]
    return next((reading for reading in readings if reading.data is not None), readings[0])


def _find_nodes(tree: Tree) -> tuple[Node, ...]:
    """The DRM nodes of the vendor's driver, or its /dev/rknpu where it was built without DRM."""
    paths = ["/dev/rknpu"]
    for name in tree.names("/sys/class/drm"):
        driver = tree.read(f"/sys/class/drm/{name}/device/uevent").text
        if name.startswith(("card", "renderD")) and f"DRIVER={VENDOR_DRIVER}" in driver.splitlines():
            paths.append(f"/dev/dri/{name}")
    return tuple(Node(path, tree.usable(path)) for path in paths if tree.has(path))


def _find_runtime(tree: Tree) -> str | None:
    paths = (f"{folder}/librknnrt.so" for folder in _RUNTIME_ELSEWHERE)
    return next((path for path in paths if tree.has(path)), None)


def _find_frequency(tree: Tree) -> Frequency | None:
    folders = [f"/sys/class/devfreq/{name}" for name in tree.names("/sys/class/devfreq") if name.endswith(".npu")]
    if not folders:
        return None
    current, available, governor = (
        tree.read(f"{folders[0]}/{name}") for name in ("cur_freq", "available_frequencies", "governor")
    )
    return Frequency(folders[0], current, available, governor)


def _read_governors(tree: Tree) -> tuple[Reading, ...]:
    base = "/sys/devices/system/cpu/cpufreq"
    names = [name for name in tree.names(base) if name.startswith("policy")]
    return tuple(tree.read(f"{base}/{name}/scaling_governor") for name in names)


def _read_zones(tree: Tree) -> tuple[Zone, ...]:
    base = "/sys/class/thermal"
    names = [name for name in tree.names(base) if name.startswith("thermal_zone")]
    return tuple(Zone(tree.read(f"{base}/{name}/type"), tree.read(f"{base}/{name}/temp")) for name in names)
