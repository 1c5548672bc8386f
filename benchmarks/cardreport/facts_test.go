//go:build linux

package cardreport

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A ConnectX with OFED, on a host with an IOMMU.
func TestFactsOfADevice(t *testing.T) {
	root := t.TempDir()
	const pci = "sys/devices/pci0000:3a/0000:3b:00.0/"
	config := make([]byte, 256)
	config[0x34], config[0x41], config[0x40] = 0x40, 0x60, 0x11 // MSI-X, then PCI Express
	config[0x60], config[0x68], config[0x69] = 0x10, 0x10, 0x50 // relaxed ordering, 4096 bytes
	for path, text := range map[string]string{
		"sys/module/mlx5_core/version":         "24.10-1.1.4",
		"proc/sys/kernel/tainted":              "4609", // 1 + 512 + 4096
		pci + "config":                         string(config),
		pci + "numa_node":                      "1",
		pci + "local_cpulist":                  "16-31",
		pci + "iommu_group/type":               "DMA-FQ",
		pci + "msi_irqs/120":                   "msix",
		pci + "msi_irqs/121":                   "msix",
		"proc/irq/120/effective_affinity_list": "3",
		"proc/irq/121/smp_affinity_list":       "0-15",
		"proc/77/comm":                         "irqbalance",
		"proc/cmdline":                         "root=UUID=secret intel_iommu=on iommu=pt quiet",
		"sys/kernel/config/rdma_cm/mlx5_0/ports/1/default_roce_mode": "RoCE v2",
		"sys/kernel/config/rdma_cm/mlx5_0/ports/1/default_roce_tos":  "106",
	} {
		path = filepath.Join(root, path)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	}
	class := filepath.Join(root, "sys/class/infiniband/mlx5_0")
	require.NoError(t, os.MkdirAll(class, 0o755))
	require.NoError(t, os.Symlink(filepath.Join(root, pci), filepath.Join(class, "device")))

	d := deviceInfo{Name: "mlx5_0", Driver: "mlx5_core", Firmware: "22.31.1014", NodeGUID: "0:1"}
	h := hostInfo{[]deviceInfo{d, {NodeGUID: "0:1"}, {NodeGUID: "0000:0000:0000:0000"}},
		libraryInfo{"35.0", map[string]string{"mlx5": "/usr/lib/libibverbs/libmlx5-rdmav34.so", "rxe": "x"}, []string{"libibverbs1 2410mlnx54-1"}}}
	facts := make(map[string]string)
	for _, f := range kernelFiles(root).facts(h, d) {
		facts[f[0]] = f[1]
	}
	for name, want := range map[string]string{
		"packages": "libibverbs1 2410mlnx54-1", "provider": "/usr/lib/libibverbs/libmlx5-rdmav34.so", "OFED": "mlx5_core 24.10-1.1.4",
		"kernel tainted": "PWO (O: modules from elsewhere)", "PCI relaxed ordering, read request": "true, 4096 bytes",
		"node GUIDs of the devices":           "of 3 devices 2 have an equal one, and 1 none",
		"RoCE mode of rdma_cm, traffic class": "RoCE v2, 106", "IOMMU": "DMA-FQ, intel_iommu=on, iommu=pt",
		"NUMA node, its processors": "1, 16-31", "interrupts": "2, to processors 3 0-15; irqbalance",
	} {
		assert.Equal(t, want, facts[name], name)
	}
	require.Equal(t, "rxe.so", libraryInfo{Providers: map[string]string{"rxe": "rxe.so"}}.provider(deviceInfo{Driver: "rdma_rxe"}))
}

func TestCountersTellOfTroubleAndNotOfTraffic(t *testing.T) {
	c := make(counts)
	for _, x := range [][3]string{
		{"", "local_ack_timeout_err", "1"}, {"", "local_ack_timeout_err", "2"}, {"", "lifespan", "10"}, {"port ", "port_xmit_discards", "3"},
		{"port ", "port_xmit_data", "4"}, {"net ", "rx_dropped", "5"}, {"net ", "rx_packets", "6"},
		{"ethtool ", "rx_prio3_pause", "7"}, {"ethtool ", "rx_prio3_bytes", "8"}, {"ethtool ", "ch0_poll", "9"}, {"ethtool ", "rx_discards_phy", "x"},
	} {
		c.add(x[0], x[1], x[2])
	}
	require.Equal(t, counts{"local_ack_timeout_err": 3, "port port_xmit_discards": 3, "net rx_dropped": 5, "ethtool rx_prio3_pause": 7}, c)
	require.True(t, c.hasHardware())
	require.False(t, counts{"net rx_dropped": 1}.hasHardware())
}

// Each read of /dev/kmsg is of a record.
func TestKernelLogHasWhatMayBeAboutCardsAlone(t *testing.T) {
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET, 0)
	require.NoError(t, err)
	for _, record := range []string{
		"6,1,100,-;mlx5_core 0000:3b:00.0: mlx5_cmd_check: CREATE_QP failed\n SUBSYSTEM=pci\n DEVICE=+pci:0000:3b:00.0\n",
		"6,2,101,-;audit: user lieselotte logged in\n", "4,3,102,-;bnxt_en: ibdev_err: inline size\n", "4,4,103,-;eth0: NIC Link is Down\n", "4,5,104,-;eth0: NIC Link is Down\n",
	} {
		_, err := syscall.Write(pair[0], []byte(record))
		require.NoError(t, err)
	}
	require.NoError(t, syscall.Close(pair[0]))
	var p Part
	kernelLog{fd: pair[1]}.tell(&p)
	require.Equal(t, "mlx5_core 0000:3b:00.0: mlx5_cmd_check: CREATE_QP failed\nbnxt_en: ibdev_err: inline size\neth0: NIC Link is Down\n(2 other lines)", p.Details)
	p = Part{}
	kernelLog{err: syscall.EPERM}.tell(&p)
	require.Contains(t, p.Problems[0], "by root perhaps: operation not permitted")
}

func TestSerialNumbersAreLeftOut(t *testing.T) {
	require.Equal(t, "pci/0000:3b:00.0:\n  driver mlx5_core\n  versions:\n",
		withoutSerialNumbers("pci/0000:3b:00.0:\n  driver mlx5_core\n  serial_number MT2142X0\n  board.serial_number MT2\n  versions:\n"))
}

// Who sends a report sees all of it, and what is not in it.
func TestReportIsShownBeforeItIsSent(t *testing.T) {
	s := newScrubber("otherbox")
	r := &document{Device: "mlx5_0", scrub: s, path: "out/card-report", Parts: []*Part{{Title: "Host", Problems: []string{"otherbox at 10.0.0.7 has /srv/secret/file"}}}}
	var out bytes.Buffer
	require.NoError(t, r.show(&out))
	require.Contains(t, out.String(), "- NAME at ADDRESS has file")
	require.Contains(t, out.String(), leftOut)
	for _, word := range []string{"otherbox", "10.0.0.7", "/srv/secret"} {
		require.True(t, s.left[word], "%v", s.left)
	}
}

// The program in C sees the defects that cards of tools/idealcard have, whatever ringnet does about them.
func TestMannersSeesDefectsOfProviders(t *testing.T) {
	t.Parallel()
	bin := programs(t)
	for manner, want := range map[string]string{
		"bnxt_re-push": "inline data, posted alone\tof ", "stale-length": "no data (no SGE), behind data in a batch\t0 bytes came as 4096",
		"hns-direct-wqe": "data from memory, in a batch\t",
	} {
		out, err := exec.Command(filepath.Join(root, "bin/idealcard"), "-rnr", "-manners", manner, "--", filepath.Join(bin, "manners"), "ideal0").CombinedOutput()
		require.NoError(t, err, "%s", out)
		i := strings.Index(string(out), want)
		require.GreaterOrEqual(t, i, 0, "%s: %s", manner, out)
		require.NotContains(t, string(out)[i:i+len(want)+10], "as sent", manner)
	}
}
