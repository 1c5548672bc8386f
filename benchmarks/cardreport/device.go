package cardreport

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/ringnet/ringnet/benchmarks/process"
)

// call runs a program that "make card-report" builds: those in C if that is possible.
func (o *options) call(ctx context.Context, c process.Call) (string, error) {
	c.Program = filepath.Join(o.bin, c.Program)
	if _, err := exec.LookPath(c.Program); err != nil {
		return "", fmt.Errorf("%s is not there: make card-report builds it; programs in C need a compiler and libibverbs-dev", filepath.Base(c.Program))
	}
	return c.Run(ctx)
}

// ringnet runs the command, whose exit status may tell of what it has found.
func (o *options) ringnet(ctx context.Context, args ...string) (string, error) {
	return o.call(ctx, process.Call{Program: "ringnet", Args: args, Most: time.Minute})
}

// deviceInfo is what is used of a device that ringnet info tells of.
type deviceInfo struct {
	Name, Driver, Firmware string
	PCI                    string
	NodeGUID               string `json:"node_guid"`
	Ports                  []struct {
		State      string
		LinkLayer  string `json:"link_layer"`
		Interfaces []struct{ Name string }
	}
	Addresses map[string][]string // of interfaces, with the lengths of their subnets
}

// hostInfo is what is used of what ringnet info tells.
type hostInfo struct {
	Devices []deviceInfo
	Library libraryInfo
}

// libraryInfo is what there is of rdma-core.
type libraryInfo struct {
	Version   string
	Providers map[string]string // their files
	Packages  []string          // with their revisions
}

// ask asks ringnet info.
func (o *options) ask(ctx context.Context) (info hostInfo, err error) {
	out, err := o.ringnet(ctx, "--json", "info")
	if wrong := json.Unmarshal([]byte(out), &info); wrong != nil {
		return info, errors.Join(err, fmt.Errorf("what ringnet printed: %w", wrong))
	}
	return info, nil
}

// versions are numbers that look like addresses.
func (o *options) versions(ctx context.Context) []string {
	info, _ := o.ask(ctx) // choose tells of an error
	all := append(info.Library.Packages, info.Library.Version, kernelFiles("/").ofed())
	for _, d := range info.Devices {
		all = append(all, d.Firmware)
	}
	return all
}

// network is the interface and the address of a device's first port that is ACTIVE and has one. A
// link-local address would want its interface behind it, and the other host knows another.
func (d *deviceInfo) network() (name, address string) {
	for _, p := range d.Ports {
		for _, i := range p.Interfaces {
			for _, text := range d.Addresses[i.Name] {
				subnet, err := netip.ParsePrefix(text)
				if err == nil && p.State == "ACTIVE" && !subnet.Addr().IsLinkLocalUnicast() {
					return i.Name, subnet.Addr().String()
				}
			}
		}
	}
	return "", ""
}

// choose finds the device, and its address, that the flags leave open.
func (o *options) choose(ctx context.Context) (chosen deviceInfo, err error) {
	info, err := o.ask(ctx)
	if err != nil {
		return chosen, err
	}
	for _, d := range info.Devices {
		netdev, address := d.network()
		if o.device == "" && address != "" || o.device == d.Name {
			chosen, o.device, o.netdev = d, d.Name, netdev
			if o.address == "" {
				o.address = address
			}
		}
	}
	switch {
	case len(info.Devices) == 0:
		return chosen, errors.New("there is no RDMA device")
	case chosen.Name == "" && o.device != "":
		return chosen, fmt.Errorf("there is no RDMA device %s", o.device)
	case o.address == "":
		return chosen, errors.New("no RDMA device is ACTIVE and has an IP address; -device and -address name others")
	}
	return chosen, nil
}
