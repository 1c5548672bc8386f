#!/bin/sh
# Runs a command and prints by how much the hardware counters of this machine's RDMA devices rose
# meanwhile, on standard error: hwcounters COMMAND ARG... (make bin/hwcounters copies this file there.)
#
# Its exit status is the command's, or 1 if the command succeeded but a message found no receive
# posted (RNR), which ringnet promises never to happen. What the devices count is the witness that
# ringnet's own counters cannot be. It fails, too, where there is no device that counts.
set -u

# counts prints the counters of all ports, each with its value: those of rdma statistic, as files.
counts() {
	for file in /sys/class/infiniband/*/ports/*/hw_counters/*; do
		name=${file#/sys/class/infiniband/}
		if [ "${file##*/}" != lifespan ] && read -r n <"$file"; then # lifespan is a setting
			echo "$name $n"
		fi 2>/dev/null # a device may be removed meanwhile
	done
}

before=$(counts)
if [ -z "$before" ]; then
	echo "hwcounters: there is no RDMA device with counters; tools/softroce runs this where there is one" >&2
	exit 1
fi
"$@"
status=$?

# Soft-RoCE counts messages that found no receive as rcvd_rnr_err, send_rnr_err and
# retry_rnr_exceeded_err; mlx5 has rnr_nak_retry_err and out_of_buffer; others have rnr in the name, too.
{
	echo "$before"
	echo
	counts
} | awk '
	NF == 0 { after = 1; next }
	!after { was[$1] = $2; next }
	$2 > was[$1] + 0 {
		print "hwcounters: " $1 " rose by " $2 - was[$1]
		counter = tolower($1)
		sub(".*/", "", counter)
		if (counter ~ /rnr/ || counter == "out_of_buffer") none = 1
	}
	END { if (!none) print "hwcounters: every message found a receive posted"; exit none }
' >&2 || [ "$status" != 0 ] || status=1
exit "$status"
