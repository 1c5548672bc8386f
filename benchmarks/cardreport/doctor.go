package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// ask has the command ringnet print JSON. Its exit status may tell of what it has found.
func (o *options) ask(ctx context.Context, answer any, args ...string) error {
	out, err := call{program: o.program("ringnet"), args: append([]string{"--json"}, args...), most: time.Minute}.run(ctx)
	if wrong := json.Unmarshal([]byte(out), answer); wrong != nil {
		return errors.Join(err, fmt.Errorf("what ringnet printed: %w", wrong))
	}
	return nil
}

func (s *session) doctor(p *part) {
	var diagnosis struct {
		Findings []struct{ Subject, Status, What, Mend string }
	}
	if err := s.ask(s.ctx, &diagnosis, "doctor"); err != nil {
		p.problem("%v", err)
		return
	}
	p.Note = "What `ringnet doctor` says."
	p.row("", "of", "what", "what mends it")
	for _, f := range diagnosis.Findings {
		p.row(f.Status, f.Subject, f.What, f.Mend)
	}
}

// deviceInfo is what is used of a device that ringnet info tells of.
type deviceInfo struct {
	Name, Driver, Firmware string
	Ports                  []struct {
		Number    int
		State     string
		LinkLayer string `json:"link_layer"`
		Rate      string
		Interface string
		MTU       int
		RoCEMTU   int `json:"roce_mtu"`
		GIDs      []struct{ Type string }
	}
	Addresses map[string][]string
}

// network is the interface and the first address of a device's first port that is ACTIVE.
func (d *deviceInfo) network() (name, address string) {
	for _, p := range d.Ports {
		if p.State == "ACTIVE" && len(d.Addresses[p.Interface]) > 0 {
			return p.Interface, d.Addresses[p.Interface][0]
		}
	}
	return "", ""
}

// layer is the link layer of its first port.
func (d *deviceInfo) layer() string {
	if len(d.Ports) == 0 {
		return ""
	}
	return d.Ports[0].LinkLayer
}

// choose finds the device, and its address, that the flags leave open.
func (s *session) choose() error {
	var info struct{ Devices []deviceInfo }
	if err := s.ask(s.ctx, &info, "info"); err != nil {
		return err
	}
	for _, d := range info.Devices {
		name, address := d.network()
		if s.device == "" && address != "" || s.device == d.Name {
			s.device, s.chosen, s.netdev = d.Name, d, name
			if s.address == "" {
				s.address = address
			}
		}
	}
	switch {
	case len(info.Devices) == 0:
		return errors.New("there is no RDMA device")
	case s.chosen.Name == "" && s.device != "":
		return fmt.Errorf("there is no RDMA device %s", s.device)
	case s.address == "":
		return errors.New("no RDMA device is ACTIVE and has an IP address; -device and -address name others")
	}
	return nil
}
