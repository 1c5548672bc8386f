package main

import (
	"encoding/json"
	"io"
	"math"
	"slices"
	"strings"
	"text/template"

	"github.com/dustin/go-humanize"

	"github.com/ringnet/ringnet"
	"github.com/ringnet/ringnet/cmd/ringnet/internal/endpoint"
	"github.com/ringnet/ringnet/cmd/ringnet/internal/host"
)

type infoCommand struct{}

// info is what ringnet info prints.
type info struct {
	Devices []deviceInfo `json:"devices"`
	Library libraryInfo  `json:"library"`
	Memory  memoryInfo   `json:"memory"`
	Auto    autoInfo     `json:"auto"`
}

type deviceInfo struct {
	host.Device
	Addresses map[string][]string `json:"addresses"`         // by network interface
	Detours   []string            `json:"detours,omitempty"` // round defects of rdma-core
}

// libraryInfo is what there is of rdma-core.
type libraryInfo struct {
	Version   string            `json:"version,omitempty"`
	Path      string            `json:"path,omitempty"` // of libibverbs
	Providers map[string]string `json:"providers"`      // their paths
	Packages  []string          `json:"packages"`       // with the distribution's revisions; of OFED, too
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

// newReason is a reason whose text, which may be a peer's, is of one line.
func newReason(r ringnet.Reason) reason {
	return reason{r.Network, r.Code, endpoint.Printable(r.Err.Error())}
}

// Run prints what this host has for ringnet.
func (infoCommand) Run(s *streams) error {
	i := info{Devices: []deviceInfo{}, Memory: readMemory()}
	for _, d := range host.Root.Devices() {
		i.Devices = append(i.Devices, deviceInfo{Device: d, Addresses: addresses(d)})
	}
	var err error
	if i.Auto, err = offers(); err != nil {
		return err
	}
	l := host.Root.Libraries() // which offers has loaded, if there is a device
	for n, d := range i.Devices {
		for _, x := range l.Defects(d.Device, false) {
			if x.Detour != "" {
				i.Devices[n].Detours = append(i.Devices[n].Detours, x.Detour)
			}
		}
	}
	i.Library = libraryInfo{Path: l.Path, Providers: l.Providers, Packages: host.Root.Packages()}
	if l.Version != (host.Version{}) {
		i.Library.Version = l.Version.String()
	}
	if s.json {
		return writeJSON(s.out, i)
	}
	return infoText.Execute(s.out, i)
}

var infoText = template.Must(template.New("").Funcs(template.FuncMap{
	"size": func(n int) string { return humanize.IBytes(uint64(n)) },
	"list": func(words []string) string { return strings.Join(words, ", ") },
}).Parse(`
{{- range $d := .Devices}}
{{- .Name}}{{with .Driver}}, driver {{.}}{{end}}{{with .Firmware}}, firmware {{.}}{{end}}{{if .IWARP}}, iWARP, which ringnet refuses{{end}}
{{range .Detours}}  round a defect of this rdma-core: {{.}}
{{end}}{{with .Near}}  near NUMA node {{.Node}}: processors {{.Processors}}{{with .Vectors}}, completion vectors {{.}}{{end}}
{{end}}{{range .Ports}}  port {{.Number}} is {{.State}}: {{.LinkLayer}}, {{.Rate}}
{{range .Interfaces}}    on {{.Name}} with an MTU of {{.MTU}}{{with .RoCEMTU}} (RoCE: {{.}}){{end}}{{with index $d.Addresses .Name}}: {{list .}}{{end}}
{{end}}{{range .GIDs}}    GID {{.Index}}: {{.GID}}, {{.Type}}
{{end}}{{end}}{{else}}no RDMA device
{{end}}{{with .Library}}{{if .Path}}rdma-core {{or .Version "of an unknown version"}}{{with .Packages}} ({{list .}}){{end}}
{{end}}{{end}}
{{with .Memory}}memory of links: {{size .Limit}} at most in a process
  a link takes {{size .Link}} at each end, a connection on it {{size .Connection}} to {{size .ConnectionMost}}
  for devices {{if lt .LockedLimit 0}}as much may be locked as there is
{{- else if not .LockedConnected}}{{size .LockedLimit}} may be locked, which is too little for a connection (ulimit -l, LimitMEMLOCK=)
{{- else}}{{size .LockedLimit}} may be locked (ulimit -l, LimitMEMLOCK=): {{.LockedConnected}} connections to one process{{end}}
{{end}}
auto offers {{list .Auto.Offers}}
{{range .Auto.PassedOver}}  but not {{.Network}} ({{.Code}}): {{.Error}}
{{end}}`))

func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// addresses are the addresses of a device's network interfaces.
func addresses(d host.Device) map[string][]string {
	all := make(map[string][]string)
	for _, p := range d.Ports {
		for _, i := range p.Interfaces {
			for _, a := range i.Addresses() {
				all[i.Name] = append(all[i.Name], a.String())
			}
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
