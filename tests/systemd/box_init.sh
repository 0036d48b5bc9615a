#!/bin/sh
# Becomes a booted systemd on a throw-away copy of the host's files.
#   box_init.sh ROOM FOLDER...
# Runs as process 1 of new pid, mount, cgroup, net, uts and ipc namespaces. What the box writes
# goes to a tmpfs over the host's root and is gone with the namespaces. FOLDERs are shown in the
# box even where they lie on file systems of their own (an overlay does not cross mounts).
set -eu
room=$1
shift
root=$room/memory/root

mount --make-rprivate /
mount -t tmpfs -o mode=0755 box "$room/memory"
mkdir "$room/memory/upper" "$room/memory/work" "$root"
mount -t overlay box -o "lowerdir=/,upperdir=$room/memory/upper,workdir=$room/memory/work" "$root"

mount -t proc -o nosuid,nodev,noexec proc "$root/proc"
mount --bind "$root/proc/sys" "$root/proc/sys"
mount -o remount,bind,ro "$root/proc/sys" # kernel settings belong to the host
mount -t sysfs -o ro,nosuid,nodev,noexec sysfs "$root/sys"
mount -t cgroup2 -o nosuid,nodev,noexec cgroup2 "$root/sys/fs/cgroup"

mount -t tmpfs -o mode=0755,nosuid dev "$root/dev"
for device in null zero full random urandom tty; do
    : >"$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
done
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666,mode=0620,gid=5 devpts "$root/dev/pts"
mount -t tmpfs -o mode=1777,nosuid,nodev shm "$root/dev/shm"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
for number in 0:stdin 1:stdout 2:stderr; do
    ln -s "/proc/self/fd/${number%:*}" "$root/dev/${number#*:}"
done
: >"$root/dev/console"
mount --bind "$room/console.log" "$root/dev/console"
mount -t tmpfs -o mode=0755,nosuid,nodev run "$root/run"

for folder in "$@"; do
    if [ ! -e "$root$folder" ] || [ -z "$(ls -A "$root$folder")" ]; then
        mkdir -p "$root$folder"
        mount --bind "$folder" "$root$folder"
    fi
done

# Nothing that the host enables runs here: no udev, no getty, no network, no timers. A unit under
# test pulls in sysinit.target and basic.target, so those must want nothing.
rm -rf "$root/etc/systemd/system"
for wants in "$root"/usr/lib/systemd/system/*.wants "$root"/lib/systemd/system/*.wants; do
    rm -rf "$wants"
done
mkdir -p "$root/etc/systemd/system" "$root/etc/systemd/journald.conf.d"
ln -s /dev/null "$root/etc/systemd/system/tmp.mount" # would hide an environment below /tmp
cat >"$root/etc/systemd/system/box.target" <<'UNIT'
[Unit]
Requires=basic.target systemd-journald.service
After=basic.target systemd-journald.service
AllowIsolate=yes
UNIT
printf '[Journal]\nStorage=volatile\nRateLimitIntervalSec=0\n' \
    >"$root/etc/systemd/journald.conf.d/box.conf"
: >"$root/etc/fstab"
tr -d - </proc/sys/kernel/random/uuid >"$root/etc/machine-id"
hostname box

cd "$root"
mkdir run/host
pivot_root . run/host
umount -l run/host
rmdir run/host
cd /
exec env -i container=test-box PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 \
    /lib/systemd/systemd --system --unit=box.target systemd.show_status=0 \
    </dev/null >>/dev/console 2>&1
