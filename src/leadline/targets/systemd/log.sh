# The output of one start of a service: "invocation ID", "file OFFSET BYTES" and these bytes, then the journal's part
# with its cursor at the end. Changes nothing.
log() { # [INVOCATION JOURNAL-CURSOR OFFSET]: where the last answer ended
  shown=$(systemctl show -p InvocationID "$unit") || fail 69 "systemd does not answer"
  invocation=${1:-$(value InvocationID)}
  if [ -z "$invocation" ]; then
    invocation=$(journalctl -q -b -n 1 -o json --output-fields=INVOCATION_ID "UNIT=$unit" 2>/dev/null |
      sed -n 's/.*"INVOCATION_ID":"\([0-9a-f]*\)".*/\1/p')
  fi
  say "invocation $invocation"
  file=$(logfile)
  offset=${3:-$(cat "$state/offset" 2>/dev/null)} size=0
  if [ -n "$file" ] && [ -r "$file" ]; then size=$(stat -L -c %s "$file"); fi
  if [ "${offset:-0}" -gt "$size" ]; then offset=0; fi
  if [ -z "$offset" ] && [ "$size" -gt 262144 ]; then offset=$((size - 262144)); fi
  count=$((size - ${offset:-0}))
  if [ "$count" -gt 4194304 ]; then count=4194304; fi
  say "file ${offset:-0} $count"
  if [ "$count" -gt 0 ]; then tail -c "+$((${offset:-0} + 1))" "$file" | head -c "$count"; fi
  [ -n "$invocation" ] || return 0
  journalctl -q -b -a -o cat --show-cursor ${2:+"--after-cursor=$2"} "_SYSTEMD_INVOCATION_ID=$invocation" + \
    "INVOCATION_ID=$invocation" 2>/dev/null
  return 0
}
