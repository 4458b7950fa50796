"""What the Debian root of a test host consists of, and what this machine must have to build and boot one."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from testhost import cgroups

TOOLS = {
    "mmdebstrap": "mmdebstrap",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "ip": "iproute2",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "mount": "mount",
}
"""What this machine needs, and the Debian package that has it."""
UML_TOOLS = {"linux.uml": "user-mode-linux", "mke2fs": "e2fsprogs"}
SEARCH = os.pathsep.join(("/usr/sbin", "/usr/bin", "/sbin", "/bin"))

PACKAGES = ("systemd", "systemd-sysv", "dbus", "openssh-server", "python3", "procps", "iproute2", "sudo")
"""Inside, beside what is always in Debian (util-linux with flock, bsdutils with logger)."""
OPERATOR = "operator"
"""The user inside that is not root: same key, no right to use sudo unless a test writes /etc/sudoers.d/operator."""
OPERATOR_ID = 1000
MASKED = (
    "apt-daily-upgrade.timer",
    "apt-daily.timer",
    "console-getty.service",
    "dev-hugepages.mount",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "e2scrub_reap.service",
    "fstrim.timer",
    "getty.target",
    "getty@tty1.service",
    "modprobe@.service",
    "proc-sys-fs-binfmt_misc.automount",
    "rescue.service",
    "sys-fs-fuse-connections.mount",
    "sys-kernel-config.mount",
    "sys-kernel-debug.mount",
    "sys-kernel-tracing.mount",
    "systemd-firstboot.service",
    "systemd-modules-load.service",
    "systemd-networkd.service",
    "systemd-networkd.socket",
    "systemd-pcrphase-sysinit.service",
    "systemd-pcrphase.service",
    "systemd-random-seed.service",
    "systemd-sysctl.service",
    "systemd-tmpfiles-clean.timer",
    "systemd-udev-trigger.service",
    "systemd-udevd-control.socket",
    "systemd-udevd-kernel.socket",
    "systemd-udevd.service",
    "systemd-update-utmp-runlevel.service",
    "systemd-update-utmp.service",
)
"""Units that have no hardware here, or would do work behind a test's back."""
SSHD = """HostKey /etc/ssh/testhost_ed25519
PermitRootLogin prohibit-password
PasswordAuthentication no
UseDNS no
PrintMotd no
PrintLastLog no
MaxStartups 200
MaxSessions 200
"""
SEED_SCRIPT = """#!/bin/sh
# Under User-Mode Linux only: network, the files of this one host, and the folders that it shares with the machine.
set -eu
ip link set lo up
ip addr add 10.0.2.15/24 dev vec0
ip link set vec0 up
seed=$(sed 's/.*testhost.seed=\\([^ ]*\\).*/\\1/' /proc/cmdline)
mkdir -p /run/seed
mount -t hostfs -o "$seed" none /run/seed
cp -a /run/seed/. /
umount /run/seed
while read -r shared; do
  mkdir -p "$shared"
  mount -r -t hostfs -o "$shared" none "$shared"
done < /etc/testhost.shared
"""
SEED_UNIT = """[Unit]
DefaultDependencies=no
ConditionKernelCommandLine=testhost.seed
After=systemd-remount-fs.service local-fs.target
Before=ssh.service sysinit.target
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/lib/testhost-seed
"""


def codename() -> str:
    """The Debian release of the root: this machine's where it is a Debian."""
    try:
        text = Path("/etc/os-release").read_text(encoding="utf-8")
    except OSError:
        text = ""
    found = re.search(r"^VERSION_CODENAME=(\w+)$", text, re.MULTILINE)
    return found[1] if found and re.search(r"^ID=debian$", text, re.MULTILINE) else "bookworm"


def key() -> str:
    """Names the root: another recipe, another root."""
    parts = (codename(), PACKAGES, OPERATOR, OPERATOR_ID, MASKED, SSHD, SEED_SCRIPT, SEED_UNIT, 1)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


def lacking(backend: str) -> str:
    """Why this machine cannot have such a host; empty when it can."""
    if sys.platform != "linux":
        return "needs Linux"
    if os.geteuid() != 0:
        return "needs root"
    tools = TOOLS | (UML_TOOLS if backend == "uml" else {})
    missing = sorted({package for tool, package in tools.items() if not shutil.which(tool, path=SEARCH)})
    if missing:
        return f"needs tools: apt-get install {' '.join(missing)}"
    if not cgroups.hierarchies() or not all(os.access(h.at, os.W_OK) for h in cgroups.hierarchies()):
        return "needs a writable /sys/fs/cgroup"
    tried = ("unshare", "--mount", "--pid", "--uts", "--ipc", "--net", "--cgroup", "--fork", "true")
    if subprocess.run(tried, capture_output=True, check=False).returncode:
        return "needs the right to make namespaces (a privileged container, or a virtual machine)"
    return ""
