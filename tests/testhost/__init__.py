"""A disposable host with a real systemd (process 1) and a real sshd, for tests.

container: systemd in namespaces of its own over an overlay of a cached Debian root; boots in about a second. It uses
    the machine's own cgroup layout: on cgroup v1 a MemoryMax= kill is a real one of the kernel, but systemd calls it
    Result=signal (it reads memory.events, which only v2 has). The kernel's log is the machine's: a host's journal also
    has what the kernel says of other hosts, so look for the cgroup's path in it.
uml: the same root under User-Mode Linux, a real kernel as an ordinary process; boots in 10 to 40 s. Always cgroup v2,
    so Result=oom-kill is real. `systemctl reboot` inside loses the network: crash it and boot it again instead.

Root is needed. Nothing is mounted in the caller's mount namespace and no address is added to its network: all that is
visible is one supervisor process with listeners on 127.0.0.1. It ends everything when its owner ends. The container is
no security boundary: root inside is root.

By hand, from the folder `tests`: `python -m testhost` boots one and tells how to reach it until its stdin ends.
"""

from testhost.host import Host, HostTrouble
from testhost.recipe import lacking

__all__ = ["Host", "HostTrouble", "lacking"]
