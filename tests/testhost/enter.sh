# Makes the namespaces that it runs in the inside of a test host, then becomes its process 1.
# Environment: STATE (folder of the host), LOWER (Debian root), NAME, UNIFIED (1: cgroup v2 alone), HIERARCHIES (lines
# DIR OPTIONS), SHARED (lines: folders to show read-only at the same path). Starts when a line comes on stdin.
set -eu
umask 022
read -r _
exec </dev/null
mount --make-rprivate /
mkdir -p "$STATE/upper" "$STATE/work" "$STATE/root"
mount -t overlay -o "lowerdir=$LOWER,upperdir=$STATE/upper,workdir=$STATE/work" testhost "$STATE/root"
root=$STATE/root

mount -t proc -o nosuid,nodev,noexec proc "$root/proc"
mount -t sysfs -o ro,nosuid,nodev,noexec sysfs "$root/sys"
mount -t tmpfs -o mode=755,nosuid,nodev tmpfs "$root/run"
mount -t tmpfs -o mode=1777,nosuid,nodev tmpfs "$root/tmp"
mount -t tmpfs -o mode=755,nosuid,size=4m tmpfs "$root/dev"
for device in null zero full random urandom tty kmsg; do
  [ -e "/dev/$device" ] || continue
  : > "$root/dev/$device"
  mount --bind "/dev/$device" "$root/dev/$device"
done
mkdir "$root/dev/pts" "$root/dev/shm" "$root/dev/mqueue"
mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts "$root/dev/pts"
mount -t tmpfs -o mode=1777,nosuid,nodev tmpfs "$root/dev/shm"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
ln -s /proc/self/fd/0 "$root/dev/stdin"
ln -s /proc/self/fd/1 "$root/dev/stdout"
ln -s /proc/self/fd/2 "$root/dev/stderr"

# The kernel's settings are the machine's: read-only inside, but for those of its own network.
mount --bind "$root/proc/sys" "$root/proc/sys"
mount -o remount,bind,ro "$root/proc/sys"
mount --bind "$root/proc/sys/net" "$root/proc/sys/net"
mount -o remount,bind,rw "$root/proc/sys/net"
[ ! -e "$root/proc/sysrq-trigger" ] || mount --bind /dev/null "$root/proc/sysrq-trigger"

if [ "$UNIFIED" = 1 ]; then
  mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
else
  mount -t tmpfs -o mode=755 tmpfs "$root/sys/fs/cgroup"
  printf '%s\n' "$HIERARCHIES" | while read -r name options; do
    mkdir -p "$root/sys/fs/cgroup/$name"
    case $options in
      v2) mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup/$name" ;;
      *) mount -t cgroup -o "$options" cgroup "$root/sys/fs/cgroup/$name" ;;
    esac
  done
fi

printf '%s\n' "$SHARED" | while read -r folder; do
  mkdir -p "$root$folder"
  mount --bind "$folder" "$root$folder"
  mount -o remount,bind,ro "$root$folder"
done

hostname "$NAME"
cd "$root"
mkdir -p .old
pivot_root . .old
umount -l /.old
rmdir /.old
exec setpriv --bounding-set=-sys_module,-sys_time,-sys_rawio,-mknod --inh-caps=-all env -i container=testhost \
  PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 /lib/systemd/systemd --show-status=no
