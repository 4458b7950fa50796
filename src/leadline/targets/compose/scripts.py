"""The scripts that look at a compose service, try words on it and give it back. POSIX sh, as printable Steps."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from leadline.launch import Halt, Run
from leadline.targets.compose.place import Place
from leadline.targets.compose.words import Taken

ASK_S = 30.0
UP_S = 300.0
STOP_S = 60.0

_OBSERVE = """
ask config compose config --format json "$service"
ask source compose config --no-interpolate --format json "$service"
ask inspect inspect_ours
image=$(compose config --images "$service")
ask image {engine} image inspect "$image"
for path in {files} "$rollout" {folder}/.env; do
  if [ -r "$path" ]; then say text "$path"; base64 <"$path"; fi
done
digests
kept=absent
if [ -e "$rollout.leadline-previous" ]; then kept=$(sha256sum <"$rollout.leadline-previous"); fi
say "digest:${{kept%% *}}" "$rollout.leadline-previous"
if [ -e "$home/was" ]; then ask was cat "$home/was"; fi
if [ -e "$home/owner" ]; then ask owner cat "$home/owner"; fi
"""

_LOOK = """
ask inspect inspect_ours
digests
printf '%s\\n' "$found" | while read -r kind id runs pid ips; do
  if [ "$kind" = row ] && [ "$runs" = true ]; then
    ask top {top} </dev/null
    if [ -r "/proc/$pid/stat" ]; then ask io cat "/proc/$pid/io"; ask status cat "/proc/$pid/status"; fi
    for ip in $ips; do ask proxy pgrep -f "^[^ ]*docker-proxy .*-container-ip $ip "; done
  fi
done
"""

_LOG = """
id=$(ours | head -n 1)
[ -n "$id" ] || {{ say none 0; return; }}
since=$({engine} inspect -f '{{{{.State.StartedAt}}}}' "$id")
if [ "$id" = "$3" ]; then since=$4; fi
say id "$id"
say log 0
{engine} logs --timestamps --since "$since" "$id" 2>&1
"""

_CANDIDATE = """
umask 077
mkdir -p "$home" || return 1
{secrets}
cat >"$home/candidate.yaml" <<'END_OF_OVERRIDE'
{text}END_OF_OVERRIDE
ask base compose config --format json "$service"
ask config compose -f "$home/candidate.yaml" config --format json "$service"
image=$(compose config --images "$service")
ask image {engine} image inspect "$image"
"""

_TAKE = """
umask 077
state=missing
for id in $(ours); do
  state=stopped
  case $({engine} inspect -f '{{{{.State.Running}}}} {{{{.State.Restarting}}}}' "$id") in *true*) state=running ;; esac
done
if [ ! -e "$home/override.yaml" ]; then
  printf '%s\\n' "$state" >"$home/was.new" && mv "$home/was.new" "$home/was" || return 1
fi
mv "$home/candidate.yaml" "$home/override.yaml" || return 1
sync "$home/override.yaml" "$home/was" "$home" 2>/dev/null || sync
"""

_STOP = """
for id in $(ours); do
  setsid {engine} stop "$id" </dev/null >/dev/null 2>&1 &
done
"""

_KILL = """
for id in $(ours); do {engine} kill "$id"; done
"""

_UP = """
{secrets}
compose -f "$home/override.yaml" up -d --no-deps --no-build --pull never --force-recreate -t 10 "$service"
"""

_READ_BACK = """
ask inspect inspect_ours
"""

BACK = """
give_back() {{
  rm -f "$home/candidate.yaml"
  [ -e "$home/override.yaml" ] || return 0
  tries=0
  until give_back_once; do
    tries=$((tries + 1))
    [ "$tries" -lt 5 ] || return 1
    sleep 2
  done
  rm -f "$home/override.yaml"
  sync "$home" 2>/dev/null || sync
}}
give_back_once() {{
  case $(cat "$home/was") in
  stopped) compose up --no-start --no-deps --no-build --pull never --force-recreate -t 10 "$service" ;;
  missing) compose rm -s -f "$service" ;;
  *) compose up -d --no-deps --no-build --pull never --force-recreate -t 10 "$service" ;;
  esac
}}
"""

_BACK_ALONE = """
give_back || return 1
[ -e "$home/guard" ] || rm -f "$home/was"
rmdir "$home" 2>/dev/null
return 0
"""

_AGAIN = """
for id in $(ours); do
  case $({engine} inspect -f '{{{{.State.Running}}}} {{{{.State.Restarting}}}}' "$id") in
  *true*) {without} compose up -d --no-deps --no-build --pull never --force-recreate "$service" ;;
  esac
done
"""


def filled(place: Place, body: str, **more: str) -> str:
    words = shlex.join(place.engine)
    pids = "hpid" if place.engine[0].endswith("podman") else "-eo pid"
    return body.format(
        engine=words,
        top=f'{words} top "$id" {pids}',
        files=shlex.join(place.files),
        folder=shlex.quote(place.folder),
        **more,
    )


def observe(place: Place) -> Run:
    return place.run("leadline-observe", filled(place, _OBSERVE), timeout_s=ASK_S)


def look(place: Place) -> Run:
    return place.run("leadline-look", filled(place, _LOOK), timeout_s=ASK_S)


def log(place: Place, container: str, since: str) -> Run:
    return place.run("leadline-log", filled(place, _LOG), container, since, timeout_s=ASK_S)


def candidate(place: Place, text: str, taken: Sequence[Taken], files: dict[str, str]) -> Run:
    body = filled(place, _CANDIDATE, text=text, secrets=secrets(taken, files))
    return place.run("leadline-candidate", body, timeout_s=ASK_S, asked=True)


def take(place: Place) -> Run:
    return place.run("leadline-take", filled(place, _TAKE), timeout_s=ASK_S)


def halt(place: Place) -> Halt:
    stop = place.run("leadline-stop", filled(place, _STOP), timeout_s=ASK_S)
    kill = place.run("leadline-kill", filled(place, _KILL), timeout_s=ASK_S)
    return Halt(stop=stop, kill=kill, timeout_s=STOP_S)


def up(place: Place, taken: Sequence[Taken], files: dict[str, str]) -> Run:
    return place.run("leadline-up", filled(place, _UP, secrets=secrets(taken, files)), timeout_s=UP_S)


def read_back(place: Place) -> Run:
    return place.run("leadline-read-back", filled(place, _READ_BACK), timeout_s=ASK_S, asked=True)


def back(place: Place) -> Run:
    return place.run("leadline-give-back", filled(place, BACK) + _BACK_ALONE, timeout_s=UP_S)


def again(place: Place, *, rolled_out: bool) -> Run:
    """The container made again, if it runs, with the rollout's file or without it."""
    body = filled(place, _AGAIN, without="" if rolled_out else "rollout=/nonexistent;")
    return place.run("leadline-recreate", body, timeout_s=UP_S)


def secrets(taken: Sequence[Taken], files: dict[str, str]) -> str:
    """Variables filled from the operator's own file, which must be as it was observed. They never leave the host."""
    lines = []
    for path in dict.fromkeys(t.path for t in taken):
        changed = f"{path} was changed by somebody else meanwhile: nothing was done"
        same = f'[ "$(sha256sum <{shlex.quote(path)})" = "{files[path]}  -" ]'
        lines.append(f"{same} || {{ printf '%s\\n' {shlex.quote(changed)} >&2; return 1; }}")
    for t in taken:
        lines.append(f"{t.variable}=$(tail -c +{t.start + 1} {shlex.quote(t.path)} | head -c {t.length})")
        lines.append(f"export {t.variable}")
    return "\n".join(lines)
