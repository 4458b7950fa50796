"""One host by hand: boots it, says how to reach it, and takes it down when stdin ends."""

from __future__ import annotations

import argparse
import sys

import testhost


def main() -> None:
    parser = argparse.ArgumentParser(prog="testhost", description=__doc__)
    parser.add_argument("--backend", choices=("container", "uml"), default="container")
    parser.add_argument("--publish", type=int, action="append", default=[], help="a port inside to reach from outside")
    asked = parser.parse_args()
    if reason := testhost.lacking(asked.backend):
        sys.exit(f"testhost: {reason}")
    host = testhost.Host.up(backend=asked.backend, publish=asked.publish)
    try:
        print(f"ssh -F {host.ssh_config} {host.name}")
        for inner in asked.publish:
            print(f"port {inner} is 127.0.0.1:{host.port_of(inner)}")
        print("end with Ctrl-D", flush=True)
        sys.stdin.read()
    finally:
        host.down()


if __name__ == "__main__":
    main()
