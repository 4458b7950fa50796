# Brings the original of one systemd service back, also without Leadline:
#   systemctl start leadline-restore@NAME.service       (NAME = the unit without ".service")
# What is at work lies in /run/leadline/UNIT/: owner, original, begun (something of the service was changed), end (the
# hooks that are still due), leash, why, log, room. A boot forgets all of it, and so the original is what boots.

ROOM=20971520 # systemd reloads nothing while less than 16 MiB are free under /run: kept for the way back

take() { # the lock of our own steps; `forget` removes it, so it must still be the file of that name
  while :; do
    mkdir -p "$state" || fail 73 "cannot write $state"
    exec 9>>"$state/lock" || fail 73 "cannot write $state/lock"
    flock 9 || fail 73 "cannot lock $state/lock"
    if [ "/proc/$$/fd/9" -ef "$state/lock" ]; then break; fi
  done
  trap unused EXIT
}
unused() { # of a guard that is over, no lock is left
  if [ ! -e "$state/owner" ]; then
    rm -f "$state/lock"
    rmdir "$state" /run/leadline 2>/dev/null
  fi
}
leave() {
  trap - EXIT
  exec 9>&-
}
note() {
  say "$(date -u +%Y-%m-%dT%H:%M:%SZ) $*" >>"$state/log" 2>/dev/null
  logger -t leadline -- "$unit: $*" 2>/dev/null || :
}
put() { # stdin to a file of the state, whole or not at all
  if cat >"$state/$1.new" && mv "$state/$1.new" "$state/$1"; then return; fi
  rm -f "$state/$1.new"
  return 1
}
told() { systemctl show -p "$1" --value "$unit"; }

deadline() { # KIND DURATION: begin it anew
  systemctl stop "leadline-$1@$name.timer" "leadline-$1@$name.service" 2>/dev/null
  systemctl reset-failed "leadline-$1@$name.timer" "leadline-$1@$name.service" 2>/dev/null
  systemd-run --quiet --collect --unit="leadline-$1@$name" --on-active="$2" --timer-property=AccuracySec=100ms \
    /bin/sh "$state/guard" due "$unit" "$1"
}
no_deadlines() {
  for kind in lease end grace; do
    systemctl stop "leadline-$kind@$name.timer" 2>/dev/null
  done
  if [ -e "$state/leash" ]; then
    leash=$(cat "$state/leash")
    rm -f "$state/leash"
    systemctl stop --no-block "leadline-leash-$leash.service" 2>/dev/null
  fi
  return 0
}
forget() { # all of ours that is left once the service is back and the hooks have run; the log stays
  no_deadlines
  rm -f "$system/leadline-restore@$name.service"
  if [ -d "$home/files" ]; then
    for file in "$home/files"/*; do
      if [ -e "$file" ] && ! grep -qsF -- "$file" "$accepted"; then rm -f "$file"; fi
    done
    rmdir "$home/files" 2>/dev/null && rmdir "$home" 2>/dev/null
  fi
  for file in "$state"/* "$state"/.[!.]*; do
    case $file in */log) ;; *) rm -rf "$file" ;; esac
  done
}

arm() { # terms in variables: campaign owner reason grace lease end until port start_hook end_hook guard
  [ "$(id -u)" = 0 ] || fail 77 "only root may guard $unit: set service.sudo, or log in as root"
  take
  fresh=
  if [ -e "$state/owner" ]; then
    if [ "$(sed -n 's/^campaign=//p' "$state/owner")" != "$campaign" ]; then
      say "leadline: another campaign holds $unit; let it end, or break its lock with: leadline unlock --unit $unit" >&2
      cat "$state/owner" >&2
      exit 75
    fi
  else
    hooks # of a campaign that is gone, when they are still due
    fresh=yes
  fi
  systemctl stop "leadline-hook@$name.service" "leadline-restore@$name.service" 2>/dev/null # they wait for us
  rm -f "$state/why"
  if armed; then
    note "armed for campaign $campaign ($owner, $reason) until $until"
    return
  fi
  if [ -n "$fresh" ]; then
    hooks
    forget
    rm -rf "$state"
  fi
  fail 73 "the guard of $unit could not be left on this host, so nothing of the service was changed"
}
armed() {
  say "campaign=$campaign
owner=$owner
reason=$reason
until=$until" | put owner || return 1
  say "$guard" | put guard || return 1
  say "$grace" | put grace || return 1
  say "$port" | put port || return 1
  if [ ! -e "$state/original" ]; then original | put original || return 1; fi
  if [ ! -e "$state/room" ]; then head -c "$ROOM" /dev/zero | put room || return 1; fi
  mkdir -p "$system" && restore_unit >"$state/unit.new" &&
    install -m 644 "$state/unit.new" "$system/leadline-restore@$name.service" || return 1
  rm -f "$state/unit.new"
  deadline end "$end" && deadline lease "$lease" || return 1
  if [ -e "$state/drained" ]; then return; fi
  if [ -n "$end_hook" ]; then say "$end_hook" | put end || return 1; fi
  : >"$state/drained" || return 1
  if [ -n "$start_hook" ]; then
    say "$start_hook" | put start || return 1
    timeout 300 /bin/sh "$state/start" >&2 9>&- || {
      say "leadline: the start hook ended with $?" >&2
      return 1
    }
    rm -f "$state/start"
  fi
}
original() {
  systemctl show -p ActiveState -p InvocationID "$unit"
  for kind in RequiredBy BoundBy ConsistsOf; do told "$kind"; done | tr ' ' '\n' | sort -u |
    while IFS= read -r other; do
    if [ -n "$other" ] && systemctl -q is-active "$other"; then say "with=$other"; fi
  done
}
restore_unit() {
  say "# Written by Leadline; gone after the campaign, and after a boot.
[Unit]
Description=Leadline: give $unit back as it was
StartLimitIntervalSec=0
CollectMode=inactive-or-failed
[Service]
Type=oneshot
ExecStart=/bin/sh /run/leadline/%i.service/guard restore %i.service
Restart=on-failure
RestartSec=2"
}

hold() {
  [ -e "$state/owner" ] || fail 74 "$unit is no longer held: its guard has given it back"
  leash=$(cat /proc/sys/kernel/random/uuid)
  stop=$(say "$unit" | sed 's/\\/\\\\/g')
  exec systemd-run --quiet --pipe --wait --collect --unit="leadline-leash-$leash" \
    --description="Leadline's hold on $unit" \
    --property="ExecStopPost=/bin/sh \"/run/leadline/$stop/guard\" dropped \"$stop\" $leash" \
    /bin/sh "$state/guard" leash "$unit" "$leash"
}
leash() { # in a unit of its own; its standard input is what is held
  take
  [ -e "$state/owner" ] || fail 74 "$unit is no longer held: its guard has given it back"
  say "$1" | put leash || fail 73 "cannot write $state/leash"
  systemctl stop "leadline-grace@$name.timer" "leadline-grace@$name.service" 2>/dev/null
  leave
  say held
  cat >/dev/null
}
dropped() {
  [ -e "$state/owner" ] || return 0
  take
  if [ ! -e "$state/leash" ] || [ "$(cat "$state/leash")" != "$1" ]; then return 0; fi
  rm -f "$state/leash"
  if [ "$(systemctl is-system-running)" = stopping ]; then rm -f "$trial"; fi
  note "the connection is gone: giving back in $(cat "$state/grace")"
  deadline grace "$(cat "$state/grace")" || due grace
}
due() {
  [ -e "$state/owner" ] || return 0
  say "$1" >>"$state/why"
  systemctl start --no-block "leadline-restore@$name.service"
}
back() { # as the campaign asks: its hooks follow by `hook`
  if [ ! -e "$system/leadline-restore@$name.service" ]; then
    [ -d "$state" ] || [ -e "$trial" ] || return 0
    take
    give_back back || return 1
    if [ ! -e "$state/owner" ]; then
      forget
      rm -rf "$state"
    fi
    return
  fi
  say back >>"$state/why"
  systemctl reset-failed "leadline-restore@$name.service" 2>/dev/null
  systemctl start "leadline-restore@$name.service"
}
restore() {
  [ -d "$state" ] || return 0
  take
  why=$(sort -u "$state/why" 2>/dev/null | tr '\n' ' ')
  give_back "${why:-asked by hand}" || return 1
  rm -f "$state/why"
  if [ "$why" = "back " ]; then return; fi
  no_deadlines
  if [ ! -e "$state/end" ]; then
    forget
  elif ! systemctl -q is-active "leadline-hook@$name.service"; then
    systemd-run --quiet --collect --unit="leadline-hook@$name" /bin/sh "$state/guard" later "$unit" || {
      hooks
      forget
    }
  fi
}

give_back() { # needs no space on any disk, but for what is kept for it
  rm -f "$state/candidate.conf"
  if [ ! -e "$state/begun" ] && [ ! -e "$trial" ]; then
    rm -f "$state/original"
    return 0
  fi
  note "giving back ($1)"
  was=$(sed -n 's/^ActiveState=//p' "$state/original" 2>/dev/null)
  before=$(sed -n 's/^InvocationID=//p' "$state/original" 2>/dev/null)
  touched=$(ls -d "$trial" 2>/dev/null)
  rm -f "$trial" || return 1
  rmdir "$system/$unit.d" 2>/dev/null
  if [ -n "$touched" ] || [ "$(told NeedDaemonReload)" = yes ]; then
    rm -f "$state/room"
    systemctl daemon-reload || return 1 # else the trial would start anew
  fi
  now=$(told InvocationID)
  case $was in
  inactive | failed | deactivating)
    systemctl stop --no-block "$unit" || return 1
    unhang "$now"
    systemctl reset-failed "$unit" 2>/dev/null
    ;;
  *)
    if [ -n "$touched" ] || [ "$now" != "$before" ] || [ "$(told ActiveState)" != active ]; then
      again "$now" || return 1
    fi
    sed -n 's/^with=//p' "$state/original" 2>/dev/null | while IFS= read -r other; do
      systemctl start --no-block "$other"
    done
    ;;
  esac
  rm -f "$state/begun" "$state/original"
  note "given back: ${was:-active}"
}
again() { # INVOCATION of the trial
  systemctl reset-failed "$unit" 2>/dev/null
  case $(told KillMode) in
  process | none) # a stop leaves processes that hold the port and the device
    systemctl stop --no-block "$unit"
    unhang "$1"
    systemctl kill -s KILL "$unit" 2>/dev/null
    systemctl start --no-block "$unit"
    ;;
  *)
    systemctl restart --no-block "$unit" || return 1
    unhang "$1"
    ;;
  esac
}
unhang() { # INVOCATION: what does not stop within 10 s is killed
  tries=0
  while [ "$tries" -lt 150 ]; do
    shown=$(systemctl show -p ActiveState -p InvocationID -p Job "$unit")
    case $(value ActiveState) in
    deactivating) ;;
    active | activating | reloading)
      if [ "$(value InvocationID)" != "$1" ] || [ "$(value Job)" = "" ]; then return 0; fi ;;
    *) return 0 ;;
    esac
    if [ "$tries" = 100 ]; then
      note "it does not stop: killing it"
      systemctl kill -s KILL "$unit"
    fi
    tries=$((tries + 1))
    sleep 0.1
  done
}

hooks() { # the end hooks, by whoever comes first
  mv "$state/end" "$state/end.now" 2>/dev/null || return 0
  rm -f "$state/drained"
  timeout 300 /bin/sh "$state/end.now" >&2 9>&-
  code=$?
  rm -f "$state/end.now"
  note "the end hook ended with $code"
  return "$code"
}
later() { # users come back when there is a server
  tries=0
  port=$(printf ':%04X' "$(cat "$state/port")")
  while [ "$tries" -lt 3600 ]; do
    if awk -v port="$port" '$4 == "0A" && substr($2, length($2) - 4) == port { found = 1 } END { exit !found }' \
      /proc/net/tcp /proc/net/tcp6 2>/dev/null; then break; fi
    case $(told ActiveState) in inactive | failed) break ;; esac
    tries=$((tries + 1))
    sleep 1
  done
  take
  hooks
  if [ ! -e "$state/original" ]; then forget; fi
}
hook() {
  [ -d "$state" ] || return 0
  take
  hooks
}
disarm() {
  [ -d "$state" ] || return 0
  take
  if [ -e "$state/owner" ] && [ "$(sed -n 's/^campaign=//p' "$state/owner")" != "$1" ]; then return 0; fi
  if [ -e "$state/begun" ]; then fail 70 "$unit is not given back yet, so its guard stays"; fi
  systemctl stop "leadline-hook@$name.service" 2>/dev/null
  forget
  rm -rf "$state"
  rmdir /run/leadline 2>/dev/null
  return 0
}

who() {
  if [ -e "$state/owner" ]; then
    cat "$state/owner"
  elif [ -e "$trial" ]; then
    say "a trial, with no guard"
  fi
}
unlock() {
  take
  say unlock >>"$state/why"
  if [ -e "$system/leadline-restore@$name.service" ]; then
    leave
    systemctl start "leadline-restore@$name.service" || return 1
  else
    give_back unlock || return 1
    leave
  fi
  rm -f "$state/owner"
  if [ ! -e "$state/guard" ]; then rm -rf "$state"; fi
}
