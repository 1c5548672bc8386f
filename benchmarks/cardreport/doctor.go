package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
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

// ask has the command ringnet print JSON. Its exit status may tell of what it has found.
func (o *options) ask(ctx context.Context, answer any, what string) error {
	out, err := o.call(ctx, process.Call{Program: "ringnet", Args: []string{"--json", what}, Most: time.Minute})
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

// choose finds the device, and its address, that the flags leave open.
func (o *options) choose(ctx context.Context) (chosen deviceInfo, err error) {
	var info struct{ Devices []deviceInfo }
	if err := o.ask(ctx, &info, "info"); err != nil {
		return chosen, err
	}
	for _, d := range info.Devices {
		_, address := d.network()
		if o.device == "" && address != "" || o.device == d.Name {
			chosen, o.device = d, d.Name
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
