package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/ringnet/ringnet/cmd/ringnet/internal/host"
)

// checkDefects adds what is known of the providers of the devices that this host has.
func (d *diagnosis) checkDefects(devices []host.Device) {
	l := host.Root.Libraries()
	packages := strings.Join(host.Root.Packages(), ", ")
	for _, device := range devices {
		equal := device.NodeGUID != "" && slices.ContainsFunc(devices, func(o host.Device) bool { return o.Name != device.Name && o.NodeGUID == device.NodeGUID })
		name, _ := host.Root.Provider(device)
		for _, x := range l.Defects(device, equal) {
			f := finding{Subject: device.Name, Status: note, What: fmt.Sprintf("this rdma-core (%v; %s) %s", l.Version, packages, x.What)}
			if x.Detour != "" {
				f.What += "; ringnet goes round it: " + x.Detour
			}
			if fix := x.Fix(l.Version); fix != "" {
				f.Mend = host.Root.Install(name) + "   # " + fix
			}
			d.add(f)
		}
	}
}
