# Puts a trial's drop-in in force, and an accepted one. The candidate lies in /run/leadline/UNIT, written by a Step.
# Exit code 75: somebody else changed something, and nothing of it was overwritten.

prepare() {
  [ "$(id -u)" = 0 ] || fail 77 "only root may change $unit: set service.sudo, or log in as root"
  mkdir -p "$state" && rm -f "$state/candidate.conf" || fail 73 "cannot write $state"
}

# What systemd-analyze says of the unit with the candidate that it does not say of it as it is.
verify() { # DROPIN, the candidate's path once it is in force
  folder=$(mktemp -d "$state/verify.XXXXXX") && mkdir -p "$folder/$unit.d" || fail 73 "cannot write $state"
  shown=$(systemctl show -p FragmentPath -p DropInPaths "$unit")
  cat "$(value FragmentPath)" >"$folder/$unit" || fail 73 "cannot copy the unit's file"
  say "$(value DropInPaths)" | tr ' ' '\n' | while IFS= read -r file; do
    case $file in
    "" | "$trial") ;;
    *) cat "$file" >"$folder/$unit.d/${file##*/}" || fail 73 "cannot copy $file" ;;
    esac
  done || exit
  systemd-analyze --help | grep -q recursive-errors && quiet=--recursive-errors=no
  analyze >"$folder/before"
  cat "$state/candidate.conf" >"$folder/$unit.d/${1##*/}" || fail 73 "cannot copy the candidate"
  analyze >"$folder/after"
  say verified
  new=$(grep -vxFf "$folder/before" "$folder/after" | sed "s#^$unit.d/##")
  rm -rf "$folder"
  if [ -n "$new" ]; then
    tidy
    say "$new"
  fi
}
analyze() {
  SYSTEMD_UNIT_PATH="$folder:" systemd-analyze verify --man=no ${quiet-} "$folder/$unit" >"$folder/said" 2>&1
  code=$?
  sed -e "s#$folder/##g" -e 's/\.conf:[0-9]*: /.conf: /' "$folder/said"
  say "exit code $code"
}

# Whether the unit's files are still those that were observed: `expected` has lines "DIGEST PATH".
unchanged() {
  shown=$(systemctl show -p FragmentPath -p SourcePath -p DropInPaths -p EnvironmentFiles "$unit")
  say "$expected" | sort >"$state/expected" || fail 73 "cannot write $state"
  { definition; say "$expected" | sed 's/^[^ ]* //'; } | awk '!seen[$0]++' | digests | sort >"$state/now"
  changed=$(comm -3 "$state/expected" "$state/now" | sed -e 's/^[[:space:]]*//' -e 's/^[^ ]* //' | sort -u |
    tr '\n' ' ')
  rm -f "$state/expected" "$state/now"
  if [ -n "$changed" ]; then
    say "changed by somebody else: ${changed% }"
    exit 75
  fi
}
same() {
  unchanged
  say "unchanged"
}
loaded() { # what was edited and not loaded would come into force by our reload
  if [ ! -e "$trial" ] && [ "$(systemctl show -p NeedDaemonReload --value "$unit")" = yes ]; then
    say "edited, and not yet loaded by systemd: $unit. Run systemctl daemon-reload, and see that it is what you want"
    exit 75
  fi
}
begin() { # the last Step before the service is touched
  unchanged
  loaded
  take
  if [ -e "$state/guard" ] && [ ! -e "$state/owner" ]; then fail 74 "the guard has given $unit back meanwhile"; fi
  if [ ! -e "$state/original" ]; then original | put original || fail 73 "cannot write $state"; fi
  : >"$state/begun" || fail 73 "cannot write $state"
  say "begun"
}
enforce() { # the service has stopped: the candidate becomes the drop-in of the trial
  unchanged
  take
  [ -e "$state/begun" ] || fail 74 "the guard has given $unit back meanwhile"
  [ -e "$state/candidate.conf" ] || fail 74 "the candidate is gone"
  until=$(sed -n 's/^until=//p' "$state/owner" 2>/dev/null)
  who=$(sed -n 's/^owner=//p' "$state/owner" 2>/dev/null)
  campaign=$(sed -n 's/^campaign=//p' "$state/owner" 2>/dev/null)
  {
    say "# A trial of Leadline, by ${who:-nobody} (campaign ${campaign:-of no name}), until ${until:-it is given back}."
    cat "$state/candidate.conf"
  } >"$state/trial.new" && mkdir -p -m 755 "$system/$unit.d" && mv "$state/trial.new" "$trial" || {
    rm -f "$state/trial.new"
    fail 73 "cannot write $trial"
  }
  chmod 755 "$system/$unit.d"
  rm -f "$state/candidate.conf" "$state/offset"
  file=$(logfile)
  if [ -n "$file" ] && [ -e "$file" ]; then stat -L -c %s "$file" >"$state/offset"; fi
  say "in force"
}
owned() { # PATH...: files of ours that the server reads, and so its user
  user=$(systemctl show -p User --value "$unit")
  mkdir -p -m 711 "$home/files" && chmod 711 "$home" "$home/files" || fail 73 "cannot write $home"
  for file in "$@"; do
    if [ -n "$user" ] && [ -e "$file" ]; then chown "$user" "$file"; fi
  done
}

keep() { # what an accepted setting replaces; never over what is kept already
  mkdir -p -m 711 "$home" && cp -p "$accepted" "$home/previous.new" && sync "$home/previous.new" || {
    rm -f "$home/previous.new"
    fail 73 "cannot write $home"
  }
  ln "$home/previous.new" "$home/previous.conf"
  code=$?
  rm -f "$home/previous.new"
  [ "$code" = 0 ] || fail 73 "$home/previous.conf keeps an earlier setting: leadline undo --unit $unit first"
  sync "$home"
}
folder() { mkdir -p -m 755 "${accepted%/*}" && chmod 755 "${accepted%/*}"; }
undoing() { mkdir -p "$state" && : >"$state/undoing"; }
revert() { # WRITTEN PREVIOUS: the kept file takes the place of ours
  if [ "$(say "$accepted" | digests)" != "$1 $accepted" ] && [ -e "$accepted" ] ||
    [ "$(say "$home/previous.conf" | digests)" != "$2 $home/previous.conf" ]; then
    say "changed by somebody else: $accepted"
    exit 75
  fi
  # Its time is now: systemd looks for newer files alone.
  folder && cp --preserve=mode,ownership "$home/previous.conf" "$accepted.new" && sync "$accepted.new" &&
    mv "$accepted.new" "$accepted" || {
    rm -f "$accepted.new"
    fail 73 "cannot write $accepted"
  }
  sync "${accepted%/*}"
  say "reverted"
}
tidy() {
  rm -f "$state/candidate.conf"
  rmdir "$state" /run/leadline 2>/dev/null
  return 0
}
undone() {
  rmdir "${accepted%/*}" "$home/files" "$home" 2>/dev/null
  rm -f "$state/undoing"
  tidy
}
restart() {
  tidy
  systemctl reset-failed "$unit" 2>/dev/null
  systemctl restart --no-block "$unit"
}
resume() { # as it is, if it was meant to run
  [ "$(systemctl show -p ActiveState --value "$unit")" = inactive ] || restart
}
begin_trial() {
  systemctl reset-failed "$unit" 2>/dev/null
  systemctl start --no-block "$unit"
}
