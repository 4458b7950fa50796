"""The cached Debian root that every test host starts from: built once, by one process, then only read."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from testhost import recipe

FOLDER = Path(os.environ.get("LEADLINE_TESTHOST_DIR", "/var/cache/leadline-testhost"))
RUNS = FOLDER / "run"
"""One folder for each host that is up."""
IMAGE_SIZE = "1500M"
_BUILD_S = 540.0


class RootTrouble(RuntimeError):
    """The root cannot be built. Says what mmdebstrap said."""


def path() -> Path:
    return FOLDER / f"root-{recipe.key()}"


@contextmanager
def locked(file: Path, *, shared: bool = False) -> Iterator[int]:
    """Waits for the lock; gives its descriptor, which a child may inherit to hold the lock longer."""
    file.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        yield fd
    finally:
        os.close(fd)


@contextmanager
def in_use() -> Iterator[int]:
    """The root is not removed while this lock, or a descriptor inherited from it, is held."""
    with locked(path().with_suffix(".lock"), shared=True) as fd:
        yield fd


def ready(backend: str) -> Path:
    """The root, or under uml its image; built first where there is none. Call it while `in_use`."""
    root, image = path(), path().with_suffix(".img")
    with locked(FOLDER / "build.lock"):
        if not root.exists():
            _build(root)
            _forget_others()
        if backend == "uml" and not image.exists():
            draft = image.with_suffix(".draft")
            draft.unlink(missing_ok=True)
            _run("mke2fs", "-q", "-F", "-t", "ext4", "-d", root, draft, IMAGE_SIZE)
            draft.rename(image)
    return image if backend == "uml" else root


def _build(root: Path) -> None:
    draft = root.with_suffix(".draft")
    shutil.rmtree(draft, ignore_errors=True)
    useradd = f"useradd -m -u {recipe.OPERATOR_ID} -N -g users -s /bin/sh -p '*' {recipe.OPERATOR}"
    try:
        _run(
            "mmdebstrap",
            "--quiet",
            "--mode=root",
            "--variant=minbase",
            f"--include={','.join(recipe.PACKAGES)}",
            *(f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "man", "locale")),
            "--dpkgopt=force-unsafe-io",
            f'--customize-hook=chroot "$1" {useradd}',
            recipe.codename(),
            draft,
            *_mirror(),
        )
        _furnish(draft)
        draft.rename(root)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _mirror() -> list[Path]:
    """The machine's own Debian sources, where it has them for this release; Debian's defaults otherwise."""
    for file in (Path("/etc/apt/sources.list.d/debian.sources"), Path("/etc/apt/sources.list")):
        if file.exists() and re.search(rf"\b{recipe.codename()}\b", file.read_text(encoding="utf-8")):
            return [file]
    return []


def _furnish(root: Path) -> None:
    units = root / "etc/systemd/system"
    for unit in recipe.MASKED:
        (units / unit).unlink(missing_ok=True)
        (units / unit).symlink_to("/dev/null")
    (units / "testhost-seed.service").write_text(recipe.SEED_UNIT)
    (units / "sysinit.target.wants").mkdir(exist_ok=True)
    (units / "sysinit.target.wants/testhost-seed.service").symlink_to("../testhost-seed.service")
    (root / "usr/lib/testhost-seed").write_text(recipe.SEED_SCRIPT)
    (root / "usr/lib/testhost-seed").chmod(0o755)
    for host_key in (root / "etc/ssh").glob("ssh_host_*"):
        host_key.unlink()
    (root / "etc/ssh/sshd_config.d/testhost.conf").write_text(recipe.SSHD)
    (root / "var/log/journal").mkdir(exist_ok=True)  # so that the journal outlives a power cut
    (root / "etc/machine-id").write_text("uninitialized\n")
    for name in ("fstab", "resolv.conf"):
        (root / "etc" / name).unlink(missing_ok=True)
        (root / "etc" / name).write_text("")


def _forget_others() -> None:
    """Remove the roots of other recipes that no host uses."""
    for root in {file.with_suffix("") for file in FOLDER.glob("root-*")} - {path()}:
        with open(root.with_suffix(".lock"), "a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            shutil.rmtree(root, ignore_errors=True)
            for suffix in (".img", ".lock"):
                root.with_suffix(suffix).unlink(missing_ok=True)


def _run(*argv: str | Path) -> None:
    words = [str(word) for word in argv]
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=_BUILD_S, check=False)
    except subprocess.TimeoutExpired:
        raise RootTrouble(f"{words[0]} did not end within {_BUILD_S:g} s") from None
    if done.returncode:
        said = done.stderr.decode(errors="replace")[-2000:]
        raise RootTrouble(f"{words[0]} ended with {done.returncode}; is the package mirror reachable?\n{said}")
