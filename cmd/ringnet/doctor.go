package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/ringnet/ringnet"
	"github.com/ringnet/ringnet/cmd/ringnet/internal/endpoint"
	"github.com/ringnet/ringnet/cmd/ringnet/internal/host"
	"github.com/ringnet/ringnet/internal/fabric"
)

type doctorCommand struct {
	Address hostPort      `arg:"" optional:"" name:"host:port" help:"A listener to connect to, which is not sent anything."`
	Timeout time.Duration `default:"5s" help:"Wait so long for the listener (${default})."`
}

// finding is a fact that decides which network carries connections.
type finding struct {
	Subject string             `json:"subject"`
	Status  status             `json:"status"`
	Code    ringnet.ReasonCode `json:"code,omitempty"` // of a reason that auto would have
	What    string             `json:"what"`
	Mend    string             `json:"mend,omitempty"` // a command, or a line of configuration
}

type status string

const (
	good status = "ok"
	note status = "note" // it could be better
	bad  status = "bad"  // a network is not used for it
)

func (f finding) isBad() bool { return f.Status == bad }

// diagnosis is all findings.
type diagnosis struct {
	Findings  []finding `json:"findings"`
	FallsBack bool      `json:"falls_back"` // to TCP, or fails
}

// add adds findings, which may have a peer's words.
func (d *diagnosis) add(findings ...finding) {
	for _, f := range findings {
		f.What = endpoint.Printable(f.What)
		d.Findings = append(d.Findings, f)
	}
}

// explains reports whether a finding is the cause of a reason. It is called while all
// findings are about RDMA. Where there is no device, the library may be missing as well.
func (d *diagnosis) explains(r reason) bool {
	return r.Network == "rdma" && slices.ContainsFunc(d.Findings, func(f finding) bool {
		return f.isBad() && f.Code == r.Code || f.Subject == noDevices && r.Code != ringnet.ReasonOther
	})
}

var errFallsBack = errors.New("connections fall back to TCP, or fail")

// Run finds out why RDMA or shared memory would not be used.
func (c *doctorCommand) Run(ctx context.Context, s *streams) error {
	auto, err := offers()
	if err != nil {
		return err
	}
	var d diagnosis
	devices := host.Root.Devices()
	d.checkDevices(devices)
	if len(devices) > 0 {
		d.checkNodes(host.Root.Nodes())
		d.checkMemory(readMemory())
		d.checkCards(cardsOf(devices))
	}
	d.checkOffers(auto)
	d.checkDefects(devices)
	garbled := false
	if slices.Contains(auto.Offers, "rdma") {
		garbled = d.checkMessages(ctx, devices)
	}
	d.FallsBack = slices.ContainsFunc(d.Findings, finding.isBad)
	if c.Address != "" {
		d.FallsBack = !d.checkPeer(ctx, string(c.Address), c.Timeout) || garbled
	}
	if s.json {
		err = writeJSON(s.out, d)
	} else {
		d.print(s.out)
	}
	if err == nil && d.FallsBack {
		err = errFallsBack
	}
	return err
}

func (d *diagnosis) print(w io.Writer) {
	for _, f := range d.Findings {
		fmt.Fprintf(w, "%-5s %s: %s\n", f.Status, f.Subject, f.What)
		for line := range strings.Lines(f.Mend) {
			fmt.Fprintf(w, "        %s\n", strings.TrimSuffix(line, "\n"))
		}
	}
}

// noDevices is the subject of the finding that there are none. Nothing else is wrong with
// RDMA then, and connections between processes of this host may use shared memory, if that is
// not switched off.
const noDevices = "devices"

func (d *diagnosis) checkDevices(devices []host.Device) {
	if len(devices) == 0 {
		f := finding{Subject: noDevices, Status: note, Code: ringnet.ReasonNoDevice, What: "there is no RDMA device", Mend: cure("rdma", ringnet.ReasonNoDevice)}
		if host.Root.ExclusiveNamespaces() {
			f.What += " in this network namespace, and each sees only its own"
			f.Mend = "rdma dev set DEVICE netns NAMESPACE\nrdma system set netns shared"
		}
		d.add(f)
		return
	}
	usable := false
	for _, device := range devices {
		findings := checkDevice(device)
		usable = usable || !slices.ContainsFunc(findings, finding.isBad)
		d.add(findings...)
	}
	if usable {
		demote(d.Findings)
	}
}

// demote makes notes of what is bad, where something else will do.
func demote(findings []finding) {
	for i := range findings {
		if findings[i].isBad() {
			findings[i].Status = note
		}
	}
}

// checkDevice finds out whether a device can be used.
func checkDevice(device host.Device) []finding {
	if because := unusable(device); because != "" {
		return []finding{{Subject: device.Name, Status: bad, Code: ringnet.ReasonUnsupported,
			What: "cannot be used, because " + because, Mend: "a RoCE or InfiniBand device"}}
	}
	var findings []finding
	for _, p := range device.Ports {
		findings = append(findings, checkPort(device, p))
	}
	if slices.ContainsFunc(findings, func(f finding) bool { return !f.isBad() }) {
		demote(findings)
	}
	name, installed := host.Root.Provider(device)
	if first, old := host.Root.Libraries().TooOld(device); old {
		findings = append(findings, finding{Subject: device.Name, Status: bad, Code: ringnet.ReasonNoLibrary,
			What: fmt.Sprintf("this rdma-core (%v) does not know it: %v is the first that does", host.Root.Libraries().Version, first), Mend: host.Root.Install(name)})
	} else if name != "" && !installed {
		findings = append(findings, finding{Subject: device.Name, Status: bad, Code: ringnet.ReasonNoLibrary,
			What: "rdma-core has no provider " + name + " here", Mend: host.Root.Install(name)})
	}
	return findings
}

// unusable says why there is no rdma over a device, whatever is done, or "".
func unusable(device host.Device) string {
	kinds := map[string]string{"i40e": "an X722 of Intel", "cxgb4": "a card of Chelsio", "erdma": "eRDMA", "qede": "a card of QLogic set to iWARP", "ice": "an E800 of Intel set to iWARP"}
	switch {
	case device.IWARP && strings.HasPrefix(device.Name, "siw"):
		return "it is an iWARP device (in software: siw), over which there is no rdma"
	case device.IWARP && kinds[device.Driver] != "":
		return "it is an iWARP device (" + kinds[device.Driver] + "), over which there is no rdma"
	case device.IWARP:
		return "it is an iWARP device, over which there is no rdma"
	case device.Driver == "efa":
		return "EFA has neither reliable connections nor a connection manager (rdma_cm)"
	case device.NodeType != "" && device.NodeType != "CA":
		return "it is no channel adapter of InfiniBand or RoCE, but: " + device.NodeType
	}
	return ""
}

// checkPort finds out whether connections can use a port.
func checkPort(device host.Device, p host.Port) finding {
	f := finding{Subject: portName(device, p), Status: bad, Code: ringnet.ReasonNoDevice}
	first := "INTERFACE"
	if len(p.Interfaces) > 0 {
		first = p.Interfaces[0].Name
	}
	switch {
	case p.State != "ACTIVE":
		f.What, f.Mend = "is "+p.State, "plug in the cable, then: ip link set "+first+" up"
	case len(p.Interfaces) == 0 && p.LinkLayer == "InfiniBand":
		f.What, f.Mend = "has no network interface of IPoIB here", "modprobe ib_ipoib   # in a container: --network host, or an interface of the device (SR-IOV)"
	case len(p.Interfaces) == 0:
		f.What, f.Mend = "has no network interface here", "docker run --network host …   # or an interface of the device (SR-IOV)"
	case !slices.ContainsFunc(p.Interfaces, host.Interface.IsHere):
		f.What = fmt.Sprintf("has its network interface, %s, in another network namespace", first)
		f.Mend = fmt.Sprintf("docker run --network host --device /dev/infiniband …\nip link set %s netns NAMESPACE   # and, in exclusive mode: rdma dev set %s netns NAMESPACE", first, device.Name)
	case len(p.Addresses()) == 0:
		f.What, f.Mend = first+" has no IP address", "ip addr add ADDRESS/LENGTH dev "+first
	default:
		return checkInterfaces(device, p)
	}
	return f
}

// checkInterfaces finds out what could be better at a port that connections can use.
func checkInterfaces(device host.Device, p host.Port) finding {
	f := finding{Subject: portName(device, p), Status: good}
	var names []string
	for _, i := range p.Interfaces {
		if len(i.Addresses()) == 0 {
			continue
		}
		names = append(names, i.Name)
		if i.RoCEMTU != 0 && i.RoCEMTU < 4096 && f.Status == good {
			f.Status = note
			f.What = fmt.Sprintf("; its packets carry %d bytes, of 4096 that they could, for the MTU of %s is %d", i.RoCEMTU, i.Name, i.MTU)
			f.Mend = fmt.Sprintf("ip link set %s mtu 4200   # on all hosts and switches on the way, or 9000", i.Name)
		}
	}
	if class := host.Root.TrafficClass(device.Name); p.LinkLayer == "Ethernet" && device.Driver != "rdma_rxe" && f.Status == good {
		f.What = fmt.Sprintf("; traffic class %s by default (Config.TrafficClass); whether the network drops such packets says: dcb pfc show dev %s", cmp.Or(class, "0"), names[0])
	}
	f.What = fmt.Sprintf("is ACTIVE on %s, %s, %s", strings.Join(names, " and "), p.LinkLayer, p.Rate) + f.What
	return f
}

func (d *diagnosis) checkNodes(nodes []host.Node) {
	for _, n := range nodes {
		switch {
		case n.Err == nil:
			d.add(finding{Subject: n.Path, Status: good, What: "can be opened"})
		case n.Missing():
			d.add(finding{Subject: n.Path, Status: bad, Code: ringnet.ReasonUnsupported, What: "is not there",
				Mend: "modprobe " + n.Module + "\ndocker run --device /dev/infiniband …"})
		default:
			d.add(finding{Subject: n.Path, Status: bad, Code: ringnet.ReasonPermission, What: n.Err.Error(), Mend: permit(n)})
		}
	}
}

// fewConnections is a number of connections that a service is likely to exceed.
const fewConnections = 64

func (d *diagnosis) checkMemory(m memoryInfo) {
	f := finding{Subject: "locked memory", Status: good, What: "without a limit"}
	if m.LockedLimit >= 0 {
		f.What = fmt.Sprintf("%s at most: %d connections", humanize.IBytes(uint64(m.LockedLimit)), m.LockedConnected)
	}
	switch {
	case m.LockedLimit >= 0 && m.LockedConnected == 0:
		f.Status, f.Code, f.Mend = bad, ringnet.ReasonLockedMemory, cure("rdma", ringnet.ReasonLockedMemory)
	case m.LockedLimit >= 0 && m.LockedConnected < fewConnections:
		f.Status, f.Mend = note, cure("rdma", ringnet.ReasonLockedMemory)
	}
	d.add(f)
}

// wanted reports whether a network is not used because the user, or the place of the
// other end, wants that.
func wanted(code ringnet.ReasonCode) bool {
	return code == ringnet.ReasonSwitchedOff || code == ringnet.ReasonOtherHost
}

// checkOffers adds the networks that a listener offers, and why it does not offer the
// others, unless a finding explains that already. If RDMA is switched off, whatever is wrong
// with it is so, too.
func (d *diagnosis) checkOffers(auto autoInfo) {
	switch {
	case slices.ContainsFunc(auto.PassedOver, func(r reason) bool { return r.Network == "rdma" && wanted(r.Code) }):
		demote(d.Findings)
	case slices.Equal(auto.Offers, []string{"tcp"}): // no shared memory is left where there is no device
		for i, f := range d.Findings {
			if f.Subject == noDevices {
				d.Findings[i].Status = bad
			}
		}
	}
	for _, network := range auto.Offers {
		if network != "tcp" {
			d.add(finding{Subject: network, Status: good, What: "is offered by listeners of auto"})
		}
	}
	for _, r := range auto.PassedOver {
		f := finding{Subject: r.Network, Status: bad, Code: r.Code, What: r.Error, Mend: cure(r.Network, r.Code)}
		if wanted(r.Code) {
			f.Status = note
		}
		if wanted(r.Code) || !d.explains(r) {
			d.add(f)
		}
	}
}

// checkPeer connects to the address, and reports whether a better network than TCP
// carries the connection, or none is wanted.
func (d *diagnosis) checkPeer(ctx context.Context, address string, timeout time.Duration) bool {
	c, err := (&ringnet.Dialer{Timeout: timeout}).DialContext(ctx, "auto", address)
	if err != nil {
		mend := "start the listener, or mend the way there: ping, traceroute, nft list ruleset"
		if dns := (*net.DNSError)(nil); errors.As(err, &dns) {
			mend = "check the name: getent hosts " + dns.Name
		}
		d.add(finding{Subject: address, Status: bad, What: err.Error(), Mend: mend})
		return false
	}
	auto := c.(*ringnet.AutoConn)
	defer auto.Close()
	network := auto.Carrier()
	fallsBack := network == "tcp" && slices.ContainsFunc(auto.PassedOver(), func(r ringnet.Reason) bool { return !wanted(r.Code) })
	f := finding{Subject: address, Status: good, What: "is connected over " + network}
	if fallsBack {
		f.Status = bad
	}
	d.add(f)
	if c, ok := auto.NetConn().(*ringnet.Conn); ok && network == "rdma" {
		path := c.Link().Path
		d.add(finding{Subject: address, Status: good,
			What: fmt.Sprintf("its link goes from %v to %v", path.Local.AddrPort().Addr(), path.Remote.AddrPort().Addr())})
	}
	for _, r := range auto.PassedOver() {
		f := finding{Subject: address, Status: note, Code: r.Code, What: fmt.Sprintf("not over %s: %v", r.Network, r.Err), Mend: mend(r)}
		if fallsBack && !wanted(r.Code) {
			f.Status = bad
		}
		d.add(f)
	}
	return !fallsBack
}

// mend returns what to do about a reason, with the user IDs if these are the reason.
func mend(r ringnet.Reason) string {
	var users *fabric.OtherUserError
	if !errors.As(r.Err, &users) {
		return cure(r.Network, r.Code)
	}
	there := fmt.Sprintf("ringnet proxy --trust-user %d …   # there, or ListenConfig.TrustUser; or one user for both", users.Own)
	if users.Refused {
		return there
	}
	return fmt.Sprintf("ringnet proxy --trust-user %d …   # here, or Dialer.TrustUser\n", users.Peer) + there
}
