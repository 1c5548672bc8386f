#!/bin/busybox sh
# The first program of a guest: it lays a file system in memory over the files
# of the host and hands over to the tool itself, which the host's files contain.
# If it fails, the kernel panics, and the console log says why.
busybox() { /bin/busybox "$@"; }

for module in /modules/*; do
	busybox insmod "$module"
done
set -e
busybox mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144,cache=loose,ro host /host
busybox mount -t tmpfs -o size=75% tmpfs /memory
busybox mkdir /memory/upper /memory/work
busybox mount -t overlay -o lowerdir=/host,upperdir=/memory/upper,workdir=/memory/work overlay /root
exec /bin/busybox switch_root /root "$SOFTROCE_EXE" guest-init
