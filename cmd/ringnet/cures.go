package main

import (
	"errors"
	"os"
	"strings"
	"syscall"

	"github.com/ringnet/ringnet"
	"github.com/ringnet/ringnet/cmd/ringnet/internal/host"
)

// cure is what to do about a reason for which a network is not used. docs/auto.md has more about them.
func cure(network string, code ringnet.ReasonCode) string {
	if network == "shm" {
		if c, ok := shmCures[code]; ok {
			return c
		}
	}
	switch code {
	case ringnet.ReasonUnsupported:
		if os.Getenv("MLX5_SINGLE_THREADED") == "1" { // which rdma refuses
			return "unset MLX5_SINGLE_THREADED"
		}
	case ringnet.ReasonNoLibrary:
		return host.Root.Install("") + "   # rdma-core v23 or newer"
	case ringnet.ReasonNoDevice:
		return findCard()
	case ringnet.ReasonPermission:
		for _, n := range host.Root.Nodes() {
			if n.Err != nil {
				return permit(n)
			}
		}
		return "setcap cap_net_bind_service=+ep PROGRAM   # for a port below 1024"
	}
	return cures[code]
}

// findCard is how a host comes to an RDMA device. (Soft-RoCE is for trying things out: TCP is faster.)
func findCard() string {
	const container = "docker run --network host --device /dev/infiniband …   # in a container, where its host has one"
	if module := host.Root.MissingModule(); module != "" {
		lines := "modprobe " + module + "   # of a card that is here"
		if host.Root.Release("ID") == "ubuntu" {
			lines += "; else: apt-get install linux-modules-extra-$(uname -r)"
		}
		return lines + "\n" + container
	}
	return "lspci   # is there a card for RoCE or InfiniBand? Nothing is amiss without one\n" + container
}

// permit is how this user may open a device file.
func permit(n host.Node) string {
	if errors.Is(n.Err, syscall.EPERM) { // of the control group, and not EACCES, of the file's mode
		return "docker run --device /dev/infiniband …\nDeviceAllow=char-infiniband_verbs rw   # systemd, and: /dev/infiniband/rdma_cm rw\nresources: {limits: {rdma/hca: 1}}   # Kubernetes, with the shared device plugin"
	}
	var lines []string
	if host.Root.ConfinedBySELinux() {
		lines = append(lines, "setsebool -P container_use_devices 1   # on the container's host: SELinux keeps devices from containers")
	}
	if n.Group != "" {
		lines = append(lines, "usermod --append --groups "+n.Group+" USER   # the group whose the files are; docker run --group-add "+n.Group)
	} else {
		lines = append(lines, `groupadd --system rdma && usermod --append --groups rdma USER   # and in a file of /etc/udev/rules.d: KERNEL=="uverbs*|rdma_cm", GROUP="rdma", MODE="0660"`)
	}
	return strings.Join(lines, "\n")
}

var shmCures = map[ringnet.ReasonCode]string{
	ringnet.ReasonUnsupported: "docker run --security-opt seccomp=PROFILE …   # a sandbox has to permit the call that is named; Linux 3.17 or newer, and another user than nobody",
	ringnet.ReasonPermission:  "docker run --user UID …   # one user for both, and a sandbox that permits the call that is named",
	ringnet.ReasonMemory:      "MemoryMax=   # systemd: more; or fewer connections, or a smaller Config.RecvBuffer",
	ringnet.ReasonSilent:      "ringnet ss   # at the listener's host: is its process stopped, or busy?",
}

var cures = map[ringnet.ReasonCode]string{
	ringnet.ReasonUnsupported:  "CGO_ENABLED=1 go build …   # on Linux",
	ringnet.ReasonLockedMemory: "LimitMEMLOCK=infinity   # systemd\ndocker run --ulimit memlock=-1 …\nulimit -l unlimited   # a shell of root",
	ringnet.ReasonMemory:       "rdma resource show   # what the device has given to whom; or MemoryMax= of systemd, fewer connections, or a smaller Config.RecvBuffer",
	ringnet.ReasonInUse:        "ss -tlnp   # says who listens; or listen at another port",
	ringnet.ReasonOtherUser:    "docker run --user UID …   # one user for both: this user namespace has no ID for the other's",
	ringnet.ReasonNoListener:   "ringnet proxy --listen auto://HOST:PORT --to tcp://127.0.0.1:PORT   # there; or ringnet.Listen(\"auto\", …)",
	ringnet.ReasonFull:         "accept faster, or raise ListenConfig.Backlog there",
	ringnet.ReasonElsewhere:    "connect to the listener's own address, not to that of a service or a port mapping",
	ringnet.ReasonUnreachable:  "ip route get ADDRESS   # has to go by way of an interface with RDMA, at both ends",
	ringnet.ReasonSilent:       "nft list ruleset   # UDP port 4791 (RoCE v2) has to pass between the hosts",
}
