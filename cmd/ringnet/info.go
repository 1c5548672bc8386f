package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/dustin/go-humanize"

	"github.com/ringnet/ringnet"
	"github.com/ringnet/ringnet/cmd/ringnet/internal/host"
)

type infoCommand struct{}

// info is what ringnet info prints.
type info struct {
	Devices []deviceInfo `json:"devices"`
	Memory  memoryInfo   `json:"memory"`
	Auto    autoInfo     `json:"auto"`
}

type deviceInfo struct {
	host.Device
	Addresses map[string][]string `json:"addresses"` // by network interface
}

// memoryInfo is in bytes. -1 means no limit.
type memoryInfo struct {
	Limit           int `json:"limit"`              // what the links of a process may register
	LockedLimit     int `json:"locked_limit"`       // what a process may lock (pin) for devices
	Link            int `json:"link"`               // what an end of a link takes at first, its first connection included
	Connection      int `json:"connection"`         // what each further connection takes at first
	ConnectionMost  int `json:"connection_most"`    // what a connection takes at most
	LockedConnected int `json:"locked_connections"` // how many connections of one link LockedLimit suffices for at first
}

// autoInfo is what a listener of auto offers.
type autoInfo struct {
	Offers     []string `json:"offers"`
	PassedOver []reason `json:"passed_over"` // why it does not offer the others
}

// reason is a ringnet.Reason.
type reason struct {
	Network string             `json:"network"`
	Code    ringnet.ReasonCode `json:"code"`
	Error   string             `json:"error"`
}

func newReason(r ringnet.Reason) reason { return reason{r.Network, r.Code, r.Err.Error()} }

// Run prints what this host has for ringnet.
func (infoCommand) Run(s *streams) error {
	i := info{Devices: []deviceInfo{}, Memory: readMemory()}
	for _, d := range host.Root.Devices() {
		i.Devices = append(i.Devices, deviceInfo{d, addresses(d)})
	}
	var err error
	if i.Auto, err = offers(); err != nil {
		return err
	}
	if s.json {
		return writeJSON(s.out, i)
	}
	i.print(s.out)
	return nil
}

func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// addresses are the addresses of a device's network interfaces.
func addresses(d host.Device) map[string][]string {
	all := make(map[string][]string)
	for _, p := range d.Ports {
		for _, a := range p.Addresses() {
			all[p.Interface] = append(all[p.Interface], a.String())
		}
	}
	return all
}

func readMemory() memoryInfo {
	m := ringnet.Memory()
	first, most := new(ringnet.Config).RingMemory()
	i := memoryInfo{
		Limit:          m.Limit,
		LockedLimit:    m.LockedLimit,
		Link:           new(ringnet.Config).PinnedMemory(),
		Connection:     first,
		ConnectionMost: most,
	}
	if m.LockedLimit == math.MaxInt {
		i.LockedLimit, i.LockedConnected = -1, -1
	} else if i.LockedLimit >= i.Link {
		i.LockedConnected = 1 + (i.LockedLimit-i.Link)/i.Connection
	}
	return i
}

// offers finds out what a listener of auto offers.
func offers() (autoInfo, error) {
	l, err := ringnet.Listen("auto", ":0")
	if err != nil {
		return autoInfo{}, err
	}
	defer l.Close()
	i := autoInfo{PassedOver: []reason{}}
	for _, r := range l.(*ringnet.AutoListener).PassedOver() {
		i.PassedOver = append(i.PassedOver, newReason(r))
	}
	for _, network := range []string{"shm", "rdma", "tcp"} {
		if !slices.ContainsFunc(i.PassedOver, func(r reason) bool { return r.Network == network }) {
			i.Offers = append(i.Offers, network)
		}
	}
	return i, nil
}

func (i info) print(w io.Writer) {
	if len(i.Devices) == 0 {
		fmt.Fprintln(w, "no RDMA device")
	}
	for _, d := range i.Devices {
		d.print(w)
	}
	fmt.Fprintf(w, "\nmemory of links: %s at most in a process\n", humanize.IBytes(uint64(i.Memory.Limit)))
	i.Memory.print(w)
	fmt.Fprintf(w, "\nauto offers %s\n", strings.Join(i.Auto.Offers, ", "))
	for _, r := range i.Auto.PassedOver {
		fmt.Fprintf(w, "  but not %s (%s): %s\n", r.Network, r.Code, r.Error)
	}
}

func (m memoryInfo) print(w io.Writer) {
	size := func(n int) string { return humanize.IBytes(uint64(n)) }
	fmt.Fprintf(w, "  a link takes %s at each end, a connection on it %s to %s\n", size(m.Link), size(m.Connection), size(m.ConnectionMost))
	switch {
	case m.LockedLimit < 0:
		fmt.Fprintln(w, "  for devices as much may be locked as there is")
	case m.LockedConnected == 0:
		fmt.Fprintf(w, "  for devices %s may be locked, which is too little for a connection (ulimit -l, LimitMEMLOCK=)\n", size(m.LockedLimit))
	default:
		fmt.Fprintf(w, "  for devices %s may be locked (ulimit -l, LimitMEMLOCK=): %d connections to one process\n", size(m.LockedLimit), m.LockedConnected)
	}
}

func (d deviceInfo) print(w io.Writer) {
	fmt.Fprint(w, d.Name)
	if d.Driver != "" {
		fmt.Fprintf(w, ", driver %s", d.Driver)
	}
	if d.Firmware != "" {
		fmt.Fprintf(w, ", firmware %s", d.Firmware)
	}
	if d.IWARP {
		fmt.Fprint(w, ", iWARP, which ringnet refuses")
	}
	fmt.Fprintln(w)
	for _, p := range d.Ports {
		fmt.Fprintf(w, "  port %d is %s: %s, %s", p.Number, p.State, p.LinkLayer, p.Rate)
		if p.Interface != "" {
			fmt.Fprintf(w, ", on %s with an MTU of %d", p.Interface, p.MTU)
		}
		if p.RoCEMTU != 0 {
			fmt.Fprintf(w, " (RoCE: %d)", p.RoCEMTU)
		}
		fmt.Fprintln(w)
		if list := d.Addresses[p.Interface]; len(list) > 0 {
			fmt.Fprintf(w, "    addresses: %s\n", strings.Join(list, ", "))
		}
		for _, g := range p.GIDs {
			fmt.Fprintf(w, "    GID %d: %s, %s\n", g.Index, g.GID, g.Type)
		}
	}
}
