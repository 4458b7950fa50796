"""Where requests go: URL, headers, certificate authority and proxy, checked once and turned into request bytes.

Secrets live in the headers and in a proxy's URL; no error text made here holds one, and `scrub` takes them out of text
that a server sent.
"""

from __future__ import annotations

import base64
import ssl
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from leadline.errors import InputError

_DEFAULT_PORT = {"http": 80, "https": 443}
_SECRET_LENGTH = 6  # shorter words of a header ("Bearer", "json") are no secrets
_OPEN_HEADERS = frozenset({"content-type", "accept", "user-agent", "host"})


@dataclass(frozen=True, slots=True)
class Proxy:
    """An HTTP proxy; `authorization` is the value of Proxy-Authorization, or empty."""

    host: str
    port: int
    authorization: str = field(default="", repr=False)

    @classmethod
    def of(cls, url: str) -> Proxy:
        """`http://[USER:PASSWORD@]HOST[:PORT]`."""
        scheme, host, port, _ = _split("the proxy URL", url, schemes=("http",))
        parts = urlsplit(url)
        authorization = ""
        if parts.username is not None:
            pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            authorization = "Basic " + base64.b64encode(pair.encode()).decode()
        return cls(host, port or _DEFAULT_PORT[scheme], authorization)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One server. `base` is the path before `/v1/...`; `authority` is what the Host header says."""

    host: str
    port: int
    tls: bool
    authority: str
    base: str
    headers: dict[str, str] = field(default_factory=dict, repr=False)
    ca: str | None = None
    proxy: Proxy | None = None

    @classmethod
    def of(cls, url: str, *, headers: dict[str, str], ca: str | None, proxy: str | None) -> Endpoint:
        """Raises InputError for what cannot be used."""
        scheme, host, port, base = _split("the service URL", url, schemes=("http", "https"))
        if "@" in urlsplit(url).netloc:
            raise InputError("the service URL holds a user name: put an Authorization header in its place")
        for name, value in headers.items():
            if not name or not all(c.isascii() and (c.isalnum() or c in "!#$%&'*+-.^_`|~") for c in name):
                raise InputError(f"{name!r} cannot be the name of an HTTP header")
            if not all(c == "\t" or " " <= c <= "~" for c in value):
                raise InputError(f"the value of header {name} holds a character that HTTP does not allow there")
        shown = f"[{host}]" if ":" in host else host
        return cls(
            host=host,
            port=port or _DEFAULT_PORT[scheme],
            tls=scheme == "https",
            authority=f"{shown}:{port}" if port and port != _DEFAULT_PORT[scheme] else shown,
            base=base,
            headers=dict(headers),
            ca=ca,
            proxy=Proxy.of(proxy) if proxy else None,
        )

    @property
    def origin(self) -> tuple[bool, str, int]:
        return (self.tls, self.host, self.port)

    def target(self, path: str) -> str:
        """What stands in the request line: absolute when a proxy reads it."""
        whole = self.base + path
        return f"http://{self.authority}{whole}" if self.proxy and not self.tls else whole

    def lines(self) -> dict[str, str]:
        """The headers of every request; the operator's own win."""
        ours = {"Host": self.authority, "User-Agent": "leadline", "Accept-Encoding": "identity"}
        if self.proxy and not self.tls and self.proxy.authorization:
            ours["Proxy-Authorization"] = self.proxy.authorization
        return _under(ours, self.headers)

    def post(self, path: str, body: bytes) -> bytes:
        """A complete HTTP/1.1 request for an event stream; its length and its keep-alive are ours to say."""
        lines = _under({"Content-Type": "application/json", "Accept": "text/event-stream"}, self.lines())
        head = "".join(
            f"{name}: {value}\r\n"
            for name, value in lines.items()
            if name.lower() not in ("content-length", "transfer-encoding", "connection")
        )
        return f"POST {self.target(path)} HTTP/1.1\r\n{head}Content-Length: {len(body)}\r\n\r\n".encode() + body

    def tunnel_request(self) -> bytes:
        """Asks the proxy for a connection to the server."""
        shown = f"[{self.host}]" if ":" in self.host else self.host
        lines = f"CONNECT {shown}:{self.port} HTTP/1.1\r\nHost: {shown}:{self.port}\r\n"
        if self.proxy and self.proxy.authorization:
            lines += f"Proxy-Authorization: {self.proxy.authorization}\r\n"
        return f"{lines}\r\n".encode()

    def tls_context(self) -> ssl.SSLContext | None:
        """None for plain HTTP. A given `ca` is trusted alone; raises InputError when it cannot be used."""
        if not self.tls:
            return None
        try:
            return ssl.create_default_context(cafile=self.ca)
        except OSError as e:
            raise InputError(f"the certificate authorities in {self.ca} cannot be used: {e.strerror or e}") from None

    def scrub(self, text: str) -> str:
        """The text without any word of a secret header."""
        values = [v for name, v in self.headers.items() if name.lower() not in _OPEN_HEADERS]
        if self.proxy:
            values.append(self.proxy.authorization)
        for word in sorted({w for v in values for w in v.split() if len(w) > _SECRET_LENGTH}, key=len, reverse=True):
            text = text.replace(word, "<secret>")
        return text


def _under(defaults: dict[str, str], given: dict[str, str]) -> dict[str, str]:
    """`given`, and those defaults whose name it does not have in any spelling."""
    names = {name.lower() for name in given}
    return {name: value for name, value in defaults.items() if name.lower() not in names} | given


def _split(what: str, url: str, *, schemes: tuple[str, ...]) -> tuple[str, str, int | None, str]:
    """Scheme, host, port and path; the message never shows the part that may hold a password."""
    wrong = InputError(f"{what} must be " + " or ".join(f"{s}://HOST[:PORT]" for s in schemes))
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
        (host or "").encode("idna")  # a label that is too long or empty
    except ValueError:
        raise wrong from None
    if not host or parts.scheme not in schemes or not url.isascii() or any(c <= " " for c in url):
        raise wrong
    if parts.query or parts.fragment:
        raise InputError(f"{what} must end with its path: no '?' and no '#'")
    return parts.scheme, host, port, parts.path.rstrip("/")


def explain(error: OSError) -> str:
    """A failed connection in plain words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the server's certificate is not trusted: {getattr(error, 'verify_message', '')}"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {getattr(error, 'reason', '') or 'no reason given'}"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, ConnectionResetError | BrokenPipeError | ConnectionAbortedError):
        return "connection reset"
    if isinstance(error, TimeoutError):
        return "timed out"
    return (error.strerror or str(error) or type(error).__name__).lower()
