package main

// This file reads the description of a fabric: its cards, and what they can do.

import (
	"bytes"
	"cmp"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/netip"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// What the library has room for: card/fabric.h and card/card.h have the same numbers.
const (
	maxCards     = 8
	maxHosts     = 2
	maxCables    = 16
	maxPorts     = 2
	maxPKeys     = 16
	maxAddresses = 64
)

// cardFabric is a fabric. README.md describes the file.
type cardFabric struct {
	Latency  duration `json:"latency"`
	Gigabits float64  `json:"gigabits"` // a second
	Messages float64  `json:"messages"` // a second
	SMDelay  duration `json:"sm_delay"` // until InfiniBand's subnet manager answers
	Seed     uint64   `json:"-"`        // of what manners and faults draw
	Cards    []card   `json:"cards"`
}

type card struct {
	Name    string   `json:"name"`
	Host    int      `json:"host"`
	Limits  limits   `json:"limits"`
	QPCache uint32   `json:"qp_cache"` // contexts of queue pairs that it keeps; 0: all
	QPMiss  duration `json:"qp_miss"`  // to fetch another one
	Manners []string `json:"manners"`  // see card/manners.h
	Ports   []port   `json:"ports"`
}

// limits are those that ibv_query_device reports.
type limits struct {
	QP     uint32 `json:"qp"`
	WR     uint32 `json:"wr"`
	CQE    uint32 `json:"cqe"`
	MR     uint32 `json:"mr"`
	SGE    uint32 `json:"sge"`
	Inline uint32 `json:"inline"`
}

// ideal are the limits of a card for which the file names none, and the highest.
var ideal = limits{QP: 1 << 16, WR: 1 << 15, CQE: 1 << 22, MR: 1<<18 - 1, SGE: 4, Inline: 512}

type port struct {
	Link      string   `json:"link"`
	MTU       int      `json:"mtu"`
	LID       uint16   `json:"lid"`
	Cable     int      `json:"cable"` // ports of two hosts at one cable reach each other
	PKeys     []string `json:"pkeys"`
	Addresses []string `json:"addresses"` // "all": every address of this host
}

// Names of link layers, as sysfs has them.
const (
	ethernet   = "Ethernet"
	infiniBand = "InfiniBand"
)

// duration is a time.Duration that is written as text, and not negative.
type duration time.Duration

func (d *duration) UnmarshalText(text []byte) error {
	parsed, err := time.ParseDuration(string(text))
	if err != nil || parsed < 0 { // the decoder adds the field's name to an error of this type
		return &json.UnmarshalTypeError{Value: strconv.Quote(string(text)), Type: reflect.TypeFor[time.Duration]()}
	}
	*d = duration(parsed)
	return nil
}

// readFabric reads a file, or, if there is none, the description of one ideal card.
func readFabric(path string) (*cardFabric, error) {
	if path == "" {
		return parseFabric([]byte(`{"cards": [{"name": "ideal0", "ports": [{"addresses": ["all"]}]}]}`))
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	f, err := parseFabric(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return f, nil
}

func parseFabric(text []byte) (*cardFabric, error) {
	f := new(cardFabric)
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(f); err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is more behind the fabric")
	}
	for i := range f.Cards {
		f.Cards[i].complete()
	}
	return f, f.check()
}

// complete gives a card what its description leaves out.
func (c *card) complete() {
	l := c.Limits
	c.Limits = limits{
		cmp.Or(l.QP, ideal.QP), cmp.Or(l.WR, ideal.WR), cmp.Or(l.CQE, ideal.CQE),
		cmp.Or(l.MR, ideal.MR), cmp.Or(l.SGE, ideal.SGE), cmp.Or(l.Inline, ideal.Inline),
	}
	for i := range c.Ports {
		p := &c.Ports[i]
		p.Link, p.MTU = cmp.Or(p.Link, ethernet), cmp.Or(p.MTU, 4096)
		if len(p.PKeys) == 0 {
			p.PKeys = []string{"0xffff"}
		}
	}
}

// check returns an error for what the library has no room for, and for what would be there twice.
func (f *cardFabric) check() error {
	errs := []error{
		within("gigabits", f.Gigabits, 0, math.MaxFloat64), within("messages", f.Messages, 0, math.MaxFloat64),
		within("number of cards", len(f.Cards), 1, maxCards),
	}
	names, addresses, lids := map[string]bool{}, map[string]bool{}, map[uint16]bool{}
	for _, c := range f.Cards {
		err := c.check(addresses, lids)
		if !regexp.MustCompile(`^[a-z][a-z0-9_]{0,30}$`).MatchString(c.Name) || names[c.Name] {
			err = errors.Join(err, errors.New("a name has up to 31 lowercase letters, digits and underscores, and there is one card of it"))
		}
		names[c.Name] = true
		for _, p := range c.Ports {
			if f.hosts() > 1 && slices.Contains(p.Addresses, "all") {
				err = errors.Join(err, errors.New(`address "all": with two hosts each port has addresses of its own`))
			}
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("card %q: %w", c.Name, err))
		}
	}
	return errors.Join(errs...)
}

// within returns an error unless a number is between two others, or one of them.
func within[T cmp.Ordered](what string, n, least, most T) error {
	if n < least || n > most {
		return fmt.Errorf("%s %v: there can be %v to %v", what, n, least, most)
	}
	return nil
}

func (c *card) check(addresses map[string]bool, lids map[uint16]bool) error {
	l := c.Limits
	errs := []error{
		within("host", c.Host, 0, maxHosts-1), within("number of ports", len(c.Ports), 1, maxPorts), within("qp_cache", c.QPCache, 0, ideal.QP-1),
		within("qp", l.QP, 1, ideal.QP), within("wr", l.WR, 1, ideal.WR), within("cqe", l.CQE, 1, ideal.CQE),
		within("mr", l.MR, 1, ideal.MR), within("sge", l.SGE, 1, ideal.SGE), within("inline", l.Inline, 1, ideal.Inline),
	}
	for _, m := range c.Manners {
		if known := manners(); !slices.Contains(known, m) {
			errs = append(errs, fmt.Errorf("manner %q: there are %s", m, strings.Join(known, ", ")))
		}
	}
	for _, p := range c.Ports {
		errs = append(errs, p.check(addresses, lids))
	}
	return errors.Join(errs...)
}

func (p *port) check(addresses map[string]bool, lids map[uint16]bool) error {
	errs := []error{
		within("cable", p.Cable, 0, maxCables-1), within("number of pkeys", len(p.PKeys), 1, maxPKeys),
		within("number of addresses", len(p.Addresses), 1, maxAddresses),
	}
	if p.Link != ethernet && p.Link != infiniBand {
		errs = append(errs, fmt.Errorf("link %q: there are %s and %s", p.Link, ethernet, infiniBand))
	}
	if !slices.Contains([]int{256, 512, 1024, 2048, 4096}, p.MTU) {
		errs = append(errs, fmt.Errorf("mtu %d: there are 256, 512, 1024, 2048 and 4096", p.MTU))
	}
	if (p.Link == infiniBand) != (p.LID != 0) || p.LID >= 0xc000 || (p.LID != 0 && lids[p.LID]) {
		errs = append(errs, fmt.Errorf("lid %d: ports of %s, and no others, have one each, from 1 to 0xbfff", p.LID, infiniBand))
	}
	lids[p.LID] = true
	for _, key := range p.PKeys {
		if n, err := strconv.ParseUint(key, 0, 16); err != nil || n&0x7fff == 0 {
			errs = append(errs, fmt.Errorf("pkey %q: it is a number of 16 bits such as \"0xffff\"", key))
		}
	}
	for _, a := range p.Addresses {
		ip, err := netip.ParseAddr(a)
		if a != "all" && (err != nil || ip.IsUnspecified() || ip.IsMulticast() || ip.Zone() != "" || ip.Is4In6()) {
			errs = append(errs, fmt.Errorf("address %q: it is that of a host, or \"all\"", a))
		}
		if a != "all" {
			a = ip.String()
		}
		if addresses[a] {
			errs = append(errs, fmt.Errorf("address %s: another port has it", a))
		}
		addresses[a] = true
	}
	return errors.Join(errs...)
}

//go:embed card/manners.h
var mannersHeader string

// manners are the names of those that card/manners.h has.
func manners() (names []string) {
	for _, m := range regexp.MustCompile(`MANNER\(\w+, "([^"]+)"\)`).FindAllStringSubmatch(mannersHeader, -1) {
		names = append(names, m[1])
	}
	return names
}

// lines is the description that card/settings.c reads.
func (f *cardFabric) lines() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d\nsm_delay %d\n", f.Seed, f.SMDelay)
	for i, c := range f.Cards {
		l := c.Limits
		fmt.Fprintf(&b, "card %s %d %x %d %d %d %d %d %d\n", c.Name, c.Host, 0x1dea1+i*16, l.QP, l.WR, l.CQE, l.MR, l.SGE, l.Inline)
		if c.QPCache > 0 {
			fmt.Fprintf(&b, "cache %d %d\n", c.QPCache, c.QPMiss)
		}
		for _, m := range c.Manners {
			fmt.Fprintf(&b, "manner %s\n", m)
		}
		for _, p := range c.Ports {
			fmt.Fprintf(&b, "port %s %d %d %d\n", strings.ToLower(p.Link), p.MTU, p.LID, p.Cable)
			for _, key := range p.PKeys {
				n, _ := strconv.ParseUint(key, 0, 16)
				fmt.Fprintf(&b, "pkey %x\n", n)
			}
			for _, a := range p.Addresses {
				fmt.Fprintf(&b, "address %s\n", a)
			}
		}
	}
	return b.String()
}

// address is the first address of the first card that fits, or "".
func (f *cardFabric) address(loopback string, fits func(netip.Addr) bool) string {
	for _, p := range f.Cards[0].Ports {
		for _, a := range p.Addresses {
			if a == "all" {
				return loopback
			}
			if fits(netip.MustParseAddr(a)) {
				return a
			}
		}
	}
	return ""
}

// gids are those of a port, in the order in which the library finds them.
func (p *port) gids(guid uint64) (all []netip.Addr) {
	if p.Link == infiniBand {
		a := [16]byte{0: 0xfe, 1: 0x80}
		for i := range 8 {
			a[15-i] = byte(guid >> (8 * i))
		}
		return []netip.Addr{netip.AddrFrom16(a)}
	}
	for _, text := range p.Addresses {
		if text != "all" {
			all = append(all, netip.MustParseAddr(text))
			continue
		}
		own, _ := net.InterfaceAddrs()
		for _, a := range own {
			all = append(all, netip.MustParsePrefix(a.String()).Addr())
		}
	}
	return all
}
