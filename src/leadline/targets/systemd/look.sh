# A service at one moment, quickly: sections that begin with "@leadline NAME". Changes nothing.
section() { printf '\n@leadline %s\n' "$1"; }

look() {
  section show
  shown=$(systemctl show -p LoadState -p ActiveState -p SubState -p MainPID -p Result -p ExecMainCode \
    -p ExecMainStatus -p ExecMainStartTimestamp -p InvocationID -p NRestarts -p ControlGroup -p FragmentPath \
    -p SourcePath -p DropInPaths -p EnvironmentFiles "$unit") || fail 69 "systemd does not answer"
  say "$shown"
  pid='' group='' active='' sub='' restarts='' invocation='' since=''
  while IFS='=' read -r key content; do
    case $key in
    MainPID) pid=$content ;;
    ControlGroup) group=$content ;;
    ActiveState) active=$content ;;
    SubState) sub=$content ;;
    NRestarts) restarts=$content ;;
    InvocationID) invocation=$content ;;
    ExecMainStartTimestamp) since=$content ;;
    esac
  done <<END
$shown
END
  section boot
  cat /proc/sys/kernel/random/boot_id
  section digests
  { definition; say "$trial"; } | digests
  if [ "${pid:-0}" -gt 0 ] && [ -r "/proc/$pid/stat" ]; then
    section stat
    cat "/proc/$pid/stat" "/proc/$pid/statm" "/proc/$pid/io" 2>/dev/null
    section cmdline
    base64 -w 0 "/proc/$pid/cmdline"
  fi
  if [ -n "$group" ]; then
    for root in /sys/fs/cgroup/systemd /sys/fs/cgroup/unified /sys/fs/cgroup; do
      if [ -d "$root$group" ]; then
        section pids
        find "$root$group" -name cgroup.procs -exec cat {} +
        break
      fi
    done
    for file in "/sys/fs/cgroup$group/memory.peak" "/sys/fs/cgroup/memory$group/memory.max_usage_in_bytes"; do
      if [ -r "$file" ]; then section peak; cat "$file"; break; fi
    done
  fi
  case $active:$sub:${restarts:-0} in
  activating:auto-restart*) ended "$since" ;;
  active:*:0 | reloading:*:0 | activating:*:0 | deactivating:stop*:0) ;;
  *) ended "$since" ;;
  esac
}
ended() { # what the supervisor said of its last starts, and the kernel since
  section journal
  journalctl -q -b -o json --output-fields=MESSAGE,INVOCATION_ID -n 200 "UNIT=$unit" 2>/dev/null
  section kernel
  journalctl -q -b -k -o json --output-fields=MESSAGE ${1:+"--since=$1"} 2>/dev/null |
    grep -e oom-kill: -e 'Killed process' | tail -n 60
}
