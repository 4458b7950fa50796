# What every script of ours on a service's host begins with. POSIX sh: sh SCRIPT VERB UNIT [ARGUMENT...].
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export LC_ALL=C TZ=UTC SYSTEMD_COLORS=0 SYSTEMD_PAGER= SYSTEMD_LOG_LEVEL=err
umask 077
unit=$2
name=${unit%.service}
state=/run/leadline/$unit
system=/run/systemd/system
trial=$system/$unit.d/zzz-leadline.conf
accepted=/etc/systemd/system/$unit.d/zz-leadline.conf

say() { printf '%s\n' "$*"; }
fail() {
  code=$1
  shift
  say "leadline: $*" >&2
  exit "$code"
}

# The paths that the unit's definition is made of, ours of a trial excluded, one a line; needs `shown`.
definition() {
  say "$shown" | sed -n -e 's/^FragmentPath=\(..*\)/\1/p' -e 's/^SourcePath=\(..*\)/\1/p'
  {
    say "$shown" | sed -n 's/^DropInPaths=//p' | tr ' ' '\n'
    for file in "/etc/systemd/system/$unit.d"/*.conf "$system/$unit.d"/*.conf; do
      if [ -e "$file" ]; then say "$file"; fi
    done
  } | while IFS= read -r file; do
    case $file in "" | "$trial") ;; *) say "$file" ;; esac
  done | awk '!seen[$0]++'
  say "$shown" | sed -n 's/^EnvironmentFiles=\(.*\) (ignore_errors=[a-z]*)$/\1/p' | environment
}
# Patterns of environment files, as the files that they stand for.
environment() {
  IFS='
'
  while IFS= read -r pattern; do
    case $pattern in
    "$state"/*) ;;
    *[*?[]*) for file in $pattern; do if [ -e "$file" ]; then say "$file"; fi; done ;;
    *) say "$pattern" ;;
    esac
  done
  unset IFS
}
# "DIGEST PATH" of each path that is read, "absent" and "unreadable" for want of one.
digests() {
  while IFS= read -r file; do
    if [ ! -e "$file" ]; then
      say "absent $file"
    elif [ -r "$file" ] && [ ! -d "$file" ]; then
      sum=$(sha256sum <"$file") && say "${sum%% *} $file"
    else
      say "unreadable $file"
    fi
  done
}
value() { say "$shown" | sed -n "s/^$1=//p"; }
# The file that the unit logs to; nothing when it is the journal.
logfile() {
  case $(systemctl show -p StandardOutput --value "$unit") in
  file | append | truncate)
    systemctl cat "$unit" 2>/dev/null | sed -n 's/^StandardOutput *= *\(file\|append\|truncate\)://p' | tail -n 1 |
      sed -e "s#%n#$unit#g" -e "s#%N#$name#g" -e "s#%p#${name%%@*}#g" -e "s#%i#${name#*@}#g" -e 's#%%#%#g'
    ;;
  esac
}
main() {
  verb=$1
  shift 2
  case $verb in leash | hold) ;; *) exec </dev/null ;; esac
  "$verb" "$@"
  exit
}
