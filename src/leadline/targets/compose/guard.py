"""What brings a compose service back without us: a script on its host, and what of systemd calls it.

Three deadlines call one unit (leash, lease, end), which is also enabled for the next boot: after a power cut docker
itself would start the trial's container again. By hand it is `systemctl start leadline-restore-KEY`.
"""

from __future__ import annotations

import shlex

from leadline.launch import Run
from leadline.ports import Guard, Terms
from leadline.targets.compose.place import Place, by_hand
from leadline.targets.compose.scripts import ASK_S, BACK, UP_S, filled

HOOK_S = 300.0
NO_SYSTEMD = (
    "this host has no systemd that we may use, so that nothing on it can bring the original back when we are gone. Say "
    "safety.unguarded = true if you do without"
)
OTHER_ENV = (
    "the compose files mean something else here than to a service of this host, which gives the original back when we "
    "are gone: they take variables from your shell. Put those into the .env beside the first file"
)

_GUARD = """\
#!/bin/sh
# Leadline tries settings of compose service {shown}. This gives it back as its own files have it.
# By hand, as root: systemctl start leadline-restore-{key}
{by_hand}
. {home}/env
set -u
key={key}
port={port}
{head}
{back}
timers_off() {{
  for timer in $1; do
    systemctl stop "leadline-$timer-$key.timer" 2>/dev/null
    systemctl reset-failed "leadline-$timer-$key.service" 2>/dev/null
  done
  return 0
}}
timer() {{
  timers_off "$1"
  systemd-run --quiet --collect --unit="leadline-$1-$key" --on-active="$2" --timer-property=AccuracySec=100ms \\
    systemctl start --no-block "leadline-restore-$key.service"
}}
listens() {{
  wanted=$(printf ':%04X' "$port")
  cat /proc/net/tcp /proc/net/tcp6 2>/dev/null |
    awk -v w="$wanted$" '$4 == "0A" && $2 ~ w {{ f = 1 }} END {{ exit !f }}'
}}
hook() {{
  mv "$home/hook" "$home/hook.run" 2>/dev/null || return 0
  timeout 300 sh "$home/hook.run"
}}
forget() {{
  timers_off "lease end grace"
  systemctl disable --quiet "leadline-restore-$key.service" 2>/dev/null
  rm -f "/etc/systemd/system/leadline-restore-$key.service"
  systemctl daemon-reload
  rm -f "$home/hook" "$home/hook.run" "$home/started" "$home/holder" "$home/env" "$home/was" "$home/lock"
  rm -f "$home/guard" "$home/owner" "$home/seen"
  rmdir "$home" 2>/dev/null
  return 0
}}
back() {{
  was=$(cat "$home/was" 2>/dev/null) || was=untouched
  (flock 9 && give_back) 9>"$home/lock"
}}
case $1 in
hold)
  printf '%s\\n' "$INVOCATION_ID" >"$home/holder"
  timers_off grace
  echo held
  exec cat >/dev/null
  ;;
lost) if [ "$(cat "$home/holder" 2>/dev/null)" = "$INVOCATION_ID" ]; then timer grace {grace_s:g}; fi ;;
renew) systemctl restart "leadline-lease-$key.timer" 2>/dev/null || : ;;
deadlines) timer lease {lease_s:g} && timer end {end_s:g} ;;
definition) compose config --hash "$service" ;;
back) back ;;
hook) hook ;;
forget) forget ;;
alone)
  back || exit 1
  tries=0
  while [ "$was" = running ] && ! listens && [ "$tries" -lt 3600 ]; do
    tries=$((tries + 1))
    sleep 0.5
  done
  hook
  forget
  ;;
esac
"""

_UNIT = """\
[Unit]
Description=Leadline: give compose service {shown} back as its files have it
After=docker.service podman.service network-online.target
ConditionPathExists={home}/guard
StartLimitIntervalSec=0

[Service]
Type=oneshot
ExecStart=/bin/sh {home}/guard alone
Restart=on-failure
RestartSec=5

[Install]
WantedBy=multi-user.target
"""

_ARM = r"""
umask 077
if [ ! -d /run/systemd/system ] || ! command -v systemd-run >/dev/null || [ "$(id -u)" != 0 ]; then
  printf '%s\n' {no_systemd} >&2
  return 3
fi
mkdir -p "$home" && chmod 700 "$home" || return 1
cat >"$home/owner.$$" <<'END_OF_OWNER'
{owner}
END_OF_OWNER
if ! ln "$home/owner.$$" "$home/owner" 2>/dev/null; then
  until=$(sed -n 's/^expires=//p' "$home/owner")
  left=no
  if [ ! -e "$home/override.yaml" ] && [ "$(date +%s)" -gt "${{until:-0}}" ]; then left=yes; fi
  if [ "$left" = yes ] || grep -qxF {campaign} "$home/owner"; then
    mv "$home/owner.$$" "$home/owner"
  else
    printf 'compose service %s is held by another campaign: ' "$service" >&2
    grep -v ^expires= "$home/owner" | tr '\n' ';' >&2
    printf ' until %s: wait for it, or break its lock by leadline unlock\n' "$(date -u -d "@$until" +%FT%TZ)" >&2
    rm -f "$home/owner.$$"
    return 4
  fi
fi
rm -f "$home/owner.$$"
printf 'expires=%s\n' "$(($(date +%s) + {end_s:.0f}))" >>"$home/owner"
for name in HOME PATH DOCKER_HOST DOCKER_CONTEXT DOCKER_CONFIG DOCKER_CERT_PATH DOCKER_TLS_VERIFY CONTAINER_HOST; do
  eval "value=\${{$name-}}"
  [ -z "$value" ] || printf "%s='%s'\nexport %s\n" "$name" "$(printf %s "$value" | sed "s/'/'\\\\''/g")" "$name"
done >"$home/env"
cat >"$home/guard.new" <<'END_OF_GUARD'
{guard}END_OF_GUARD
mv "$home/guard.new" "$home/guard" || return 1
unit=/etc/systemd/system/leadline-restore-{key}.service
cat >"$unit.new" <<'END_OF_UNIT'
{unit}END_OF_UNIT
mv "$unit.new" "$unit" && systemctl daemon-reload || return 1
systemctl enable --quiet "leadline-restore-{key}.service" || return 1
env -i sh "$home/guard" definition >"$home/seen" 2>&1
if [ "$(compose config --hash "$service" 2>&1)" != "$(cat "$home/seen")" ]; then
  printf '%s\n' {other_env} >&2
  sh "$home/guard" forget
  return 5
fi
rm -f "$home/seen"
sh "$home/guard" deadlines || return 1
if [ ! -e "$home/started" ]; then
  cat >"$home/hook" <<'END_OF_HOOK'
{end_hook}
END_OF_HOOK
  : >"$home/started"
  umask 022
  {start_hook}
fi
"""

_UNLOCK = """
if [ -e "$home/guard" ]; then
  sh "$home/guard" back || return 1
  sh "$home/guard" hook
  sh "$home/guard" forget
fi
rm -f "$home/owner"
"""


def guard(place: Place, terms: Terms) -> Guard:
    """Its scripts run as root, with what the operator's hooks say. Two campaigns never arm one service."""
    home = place.home

    def told(word: str, timeout_s: float) -> Run:
        body = f'[ -e "$home/guard" ] || return 0\nsh "$home/guard" {word}'
        return place.run(f"leadline-{word}", body, timeout_s=timeout_s)

    hold = ("systemd-run", "--quiet", "--pipe", "--wait", "--collect", "-p", f"ExecStopPost=/bin/sh {home}/guard lost")
    return Guard(
        arm=(place.run("leadline-arm", _arm(place, terms), terms.campaign, timeout_s=HOOK_S),),
        hold=Run(argv=(*hold, "/bin/sh", f"{home}/guard", "hold"), timeout_s=ASK_S, sudo=place.sudo),
        renew=told("renew", ASK_S),
        back=told("back", UP_S),
        hook=told("hook", HOOK_S),
        disarm=(told("forget", ASK_S),),
    )


def _arm(place: Place, terms: Terms) -> str:
    fields = (("campaign", terms.campaign), ("owner", terms.owner), ("reason", terms.reason))
    owner = [f"{name}={' '.join(value.split())}" for name, value in fields]
    unit = _UNIT.format(shown=_shown(place), home=place.home)
    return _ARM.format(
        no_systemd=shlex.quote(NO_SYSTEMD),
        other_env=shlex.quote(OTHER_ENV),
        owner="\n".join(owner),
        campaign=shlex.quote(owner[0]),
        end_s=terms.end_s,
        guard=_script(place, terms),
        key=place.key,
        unit=unit,
        end_hook=shlex.join(terms.end) or ":",
        start_hook=shlex.join(terms.start) or ":",
    )


def _script(place: Place, terms: Terms) -> str:
    return _GUARD.format(
        shown=_shown(place),
        home=place.home,
        key=place.key,
        by_hand="\n".join(f"#   {line}" for line in by_hand(place)),
        port=terms.port,
        head=place.head(),
        back=filled(place, BACK),
        grace_s=terms.grace_s,
        lease_s=terms.lease_s,
        end_s=terms.end_s,
    )


def _shown(place: Place) -> str:
    """On one line, for a header and a unit file."""
    return " ".join(f"{place.service} of {place.files[0]}".split()).replace("%", "%%")


def unlock(place: Place) -> tuple[Run, ...]:
    look = 'if [ -e "$home/owner" ]; then cat "$home/owner"; fi'
    return (
        place.run("leadline-owner", look, timeout_s=ASK_S, asked=True),
        place.run("leadline-unlock", _UNLOCK, timeout_s=UP_S),
    )
