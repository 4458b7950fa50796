"""A service of `docker compose` or `podman compose`: tried through an override file, and given back by its own files.

The containers outlive us, and a power cut: docker starts them again as they were made last. So what the guard needs
lies on the host's disk, and a unit of systemd gives the service back at the next boot.
"""

from leadline.targets.compose.target import target

__all__ = ["target"]
