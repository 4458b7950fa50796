"""What every test may ask for by name."""

from support_systemd import systemd_host

__all__ = ["systemd_host"]
