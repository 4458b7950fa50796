# Everything that is to be known of a unit before it is touched, and after: frames "KIND NAME CONTENT", the last two in
# base64. Changes nothing.
frame() { # KIND NAME, content from stdin
  printf '%s %s ' "$1" "$(printf %s "$2" | base64 -w 0)"
  base64 -w 0
  say
}
from() { if [ -e "$3" ]; then frame "$1" "$2" <"$3"; fi; }

observe() { # BUS-PATH of the unit
  shown=$(systemctl show -p Id -p LoadState -p ActiveState -p SubState -p MainPID -p UnitFileState -p FragmentPath \
    -p SourcePath -p DropInPaths -p EnvironmentFiles -p ControlGroup -p NeedDaemonReload -p Transient -p User -p Type \
    -p RefuseManualStart -p RefuseManualStop -p LoadError -p KillMode "$unit" 2>&1) ||
    fail 69 "systemd does not answer here: $shown"
  say "$shown" | frame show ""
  paths=$(definition)
  say "$paths" | while IFS= read -r file; do
    if [ -r "$file" ] && [ ! -d "$file" ]; then from text "$file" "$file"; fi
  done
  from trial "$trial" "$trial"
  { say "$paths"; say "$accepted"; say "$home/previous.conf"; } | awk '!seen[$0]++' | digests | frame digests ""
  busctl --json=short get-property org.freedesktop.systemd1 "$1" org.freedesktop.systemd1.Service ExecStart \
    2>/dev/null | frame exec ""
  pid=$(value MainPID)
  if [ "${pid:-0}" -gt 0 ]; then from cmdline "$pid" "/proc/$pid/cmdline"; fi
  from owner "" "$state/owner"
  from original "" "$state/original"
  from begun "" "$state/begun"
  from undoing "" "$state/undoing"
  facts "$(value User)" | frame facts ""
}
facts() { # what specifiers stand for
  say "H=$(uname -n)"
  say "a=$(uname -m)"
  say "v=$(uname -r)"
  say "m=$(cat /etc/machine-id 2>/dev/null)"
  say "b=$(tr -d - </proc/sys/kernel/random/boot_id)"
  say "s=$(awk -F: '$1 == "root" {print $7}' /etc/passwd)"
  say "user=${1:-root}"
  sed 's/^/os./' /etc/os-release 2>/dev/null
}
