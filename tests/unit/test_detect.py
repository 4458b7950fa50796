"""What the host can tell of a launch before it is made."""

from collections.abc import Mapping, Sequence

import pytest

from leadline import detect
from leadline.engines.llamacpp import LlamaCpp
from leadline.errors import HostError, InputError
from leadline.evidence import Device
from leadline.launch import LaunchFile, LaunchSpec
from leadline.ports import Completed

LAUNCH = LaunchSpec(argv=("serve", "--config", "c.yaml"), cwd="/srv")


class Asking(LlamaCpp):
    """An engine whose launch names a version command, a file and a hub model."""

    def version_argv(self, launch: LaunchSpec) -> tuple[str, ...] | None:
        return ("serve", "--version")

    def files(self, launch: LaunchSpec) -> tuple[str, ...]:
        return ("c.yaml", "/etc/d.yaml")

    def model(self, launch: LaunchSpec) -> str | None:
        return "org/name"


class Answers:
    """A host of files and commands; what it does not have fails."""

    def __init__(self, files: Mapping[str, bytes] = {}, said: Mapping[str, tuple[int, str, str]] = {}) -> None:
        self.files, self.said = files, said
        self.ran: list[Sequence[str]] = []

    def read(self, path: str) -> bytes | None:
        return self.files.get(path)

    def run(self, argv: Sequence[str], *, stdin: bytes = b"", timeout_s: float = 60.0) -> Completed:
        self.ran.append(argv)
        if argv[0] not in self.said:
            raise HostError(f"no program {argv[0]}")
        code, out, err = self.said[argv[0]]
        return Completed(argv=tuple(argv), code=code, stdout=out.encode(), stderr=err.encode())


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ((0, "0.5.16\n", ""), "0.5.16"),
        ((0, "a warning\n0.22.1\n", "noise\n"), "0.22.1"),
        ((0, "", "version: 10434 (abc)\nbuilt with gcc\n"), "10434 (abc)"),
        ((0, "0.22.1\n", "WARNING: this version 2.1.0 of numpy is deprecated\n"), "0.22.1"),
        ((0, "v0.5.16\nsome revision\n", ""), "v0.5.16"),
        ((0, "hello\n", ""), None),
        ((0, "", ""), None),
        ((1, "0.5.16\n", "Traceback"), None),
    ],
)
def test_the_version_is_what_the_program_says(said: tuple[int, str, str], version: str | None) -> None:
    assert detect.version(Asking(), Answers(said={"serve": said}), LAUNCH) == version


def test_a_program_that_is_not_there_has_no_version() -> None:
    assert detect.version(Asking(), Answers(), LAUNCH) is None


def test_files_are_read_from_the_launchs_own_folder() -> None:
    host = Answers(files={"/srv/c.yaml": b"a: 1\n", "/etc/d.yaml": b"b: 2\n"})
    launch = detect.with_files(Asking(), host, LAUNCH)
    assert launch.files == (LaunchFile("c.yaml", "a: 1\n"), LaunchFile("/etc/d.yaml", "b: 2\n"))


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(InputError, match=r"c\.yaml, and there is none at /srv/c\.yaml"):
        detect.with_files(Asking(), Answers(files={"/etc/d.yaml": b""}), LAUNCH)


def test_a_file_that_is_no_text_is_named() -> None:
    host = Answers(files={"/srv/c.yaml": b"\xff", "/etc/d.yaml": b""})
    with pytest.raises(InputError, match=r"/srv/c\.yaml is not UTF-8 at byte 0"):
        detect.with_files(Asking(), host, LAUNCH)


def test_a_model_of_the_hub_and_the_device() -> None:
    cached = "/root/.cache/hub/models--org--name/snapshots/1/config.json"
    host = Answers(
        files={cached: b'{"num_hidden_layers": 3}'},
        said={"bash": (0, cached + "\n", ""), "nvidia-smi": (0, "NVIDIA H200, 143771\nNVIDIA H200, 143771\n", "")},
    )
    launch = LaunchSpec(argv=("llama-server", "-m", "x"), cwd="/srv")
    ground = detect.ground(Asking(), host, launch, model_config=None, draft_config=None, device_bytes=None)
    assert ground.model is not None
    assert ground.model.fields == {"num_hidden_layers": 3}
    assert ground.draft is None
    assert ground.device == Device(name="NVIDIA H200", total_bytes=143771 << 20, count=2)


def test_what_the_operator_says_goes_first() -> None:
    host = Answers(files={"/given.json": b'{"a": 1}'}, said={"nvidia-smi": (0, "NVIDIA H200, 143771\n", "")})
    launch = LaunchSpec(argv=("llama-server", "-m", "x"))
    ground = detect.ground(Asking(), host, launch, model_config="/given.json", draft_config=None, device_bytes=80 << 30)
    assert ground.model is not None
    assert ground.model.fields == {"a": 1}
    assert ground.device == Device(name="NVIDIA H200", total_bytes=80 << 30)


def test_nothing_known_is_no_error() -> None:
    launch = LaunchSpec(argv=("llama-server", "-m", "x"))
    ground = detect.ground(Asking(), Answers(), launch, model_config=None, draft_config=None, device_bytes=None)
    assert (ground.model, ground.draft, ground.device, ground.seen) == (None, None, None, ())


@pytest.mark.parametrize("content", [None, b"[]", b"no json"])
def test_a_config_that_cannot_be_read_is_named(content: bytes | None) -> None:
    host = Answers(files={} if content is None else {"/given.json": content})
    launch = LaunchSpec(argv=("llama-server", "-m", "x"))
    with pytest.raises(InputError, match=r"/given\.json"):
        detect.ground(Asking(), host, launch, model_config="/given.json", draft_config=None, device_bytes=None)
