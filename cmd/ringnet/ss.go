package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os/user"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"

	"github.com/ringnet/ringnet/cmd/ringnet/internal/endpoint"
	"github.com/ringnet/ringnet/cmd/ringnet/internal/host"
	"github.com/ringnet/ringnet/internal/inspect"
)

// shown is which connections a subcommand shows.
type shown struct {
	Process string  `placeholder:"NAME|PID" help:"Only those of processes with this name or number."`
	Carrier *string `placeholder:"NETWORK" enum:"shm,rdma,tcp" help:"Only those that this network carries: shm, rdma or tcp."`
	State   *string `placeholder:"STATE" enum:"open,fin-sent,fin-received,finished,reset,aborted,closing,ended,seeking,busy" help:"Only those in this state: open, fin-sent, fin-received, finished, reset, aborted, closing, ended, seeking or busy."`
	Address end     `placeholder:"IP|:PORT|IP:PORT" help:"Only those with this address at either end."`
}

// end is what may be asked for of an address: an IP address, a port, or both.
type end string

// UnmarshalText returns an error unless text is that.
func (e *end) UnmarshalText(text []byte) error {
	host, port, err := net.SplitHostPort(string(text))
	if err != nil {
		host, port = string(text), ""
	}
	_, badHost := netip.ParseAddr(host)
	_, badPort := strconv.ParseUint(port, 10, 16)
	if host != "" && badHost != nil || port != "" && badPort != nil {
		return fmt.Errorf("%q: want an IP address, :PORT, or both", text)
	}
	*e = end(text)
	return nil
}

type ssCommand struct {
	shown
	Links bool          `help:"Show links in place of connections."`
	Watch time.Duration `placeholder:"TIME" help:"Show them again and again, with rates: for example every 1s."`
}

type killCommand struct {
	PID    int    `arg:"" name:"pid" help:"The process."`
	Number uint64 `arg:"" help:"The number of the connection: see ringnet ss."`
}

// Run has a process end one of its connections.
func (c *killCommand) Run(ctx context.Context) error {
	if c.PID <= 0 || c.Number == 0 {
		return misuseError{fmt.Errorf("process %d, connection %d: want numbers that ringnet ss shows", c.PID, c.Number)}
	}
	return inspect.Kill(ctx, c.PID, c.Number)
}

// askWithin is how long ss waits for all processes.
const askWithin = 10 * time.Second

// survey is what the processes of this host have told, each at its own time.
type survey struct {
	at     time.Time // of the last answer, or of the end of the wait for it
	all    []inspect.Process
	others int // processes that answer other users
}

// hint says that there is more than a survey has, or is nil.
func (v survey) hint() error {
	if v.others == 0 {
		return nil
	}
	return fmt.Errorf("%d %s not shown", v.others, english.PluralWord(v.others, "process of another user is", "processes of other users are"))
}

// ask asks the processes of this host. An error that some did not answer comes with what the others
// have told.
func (f *shown) ask(ctx context.Context) (v survey, failed error, err error) {
	ctx, cancel := context.WithTimeout(ctx, askWithin)
	defer cancel()
	all, others, errs, err := inspect.Ask(ctx, f.Process)
	if err != nil {
		return survey{}, nil, err
	}
	all = slices.DeleteFunc(all, func(p inspect.Process) bool {
		return f.Process != "" && f.Process != p.Program && f.Process != strconv.Itoa(p.PID)
	})
	slices.SortFunc(all, func(a, b inspect.Process) int { return cmp.Compare(a.PID, b.PID) })
	for i := range all {
		p := &all[i]
		clean(p)
		p.Connections = slices.DeleteFunc(p.Connections, func(c inspect.Connection) bool {
			return !matches(f.Carrier, c.Carrier) || !matches(f.State, stateOf(c.State, c.SeekingSince)) || !f.at(c.Local, c.Remote)
		})
		p.Links = slices.DeleteFunc(p.Links, func(l inspect.Link) bool {
			return !matches(f.Carrier, l.Network) || !matches(f.State, stateOf("", l.SeekingSince)) || !f.at(l.Local, l.Remote)
		})
	}
	return survey{time.Now(), all, others}, errors.Join(errs...), nil
}

// matches reports whether a flag that names one thing was not given, or names this one.
func matches(flag *string, is string) bool { return flag == nil || *flag == is }

// at reports whether one of the addresses is the one asked for.
func (f *shown) at(addrs ...string) bool {
	if f.Address == "" {
		return true
	}
	return slices.ContainsFunc(addrs, func(addr string) bool {
		host, port, err := net.SplitHostPort(addr)
		return err == nil && slices.Contains([]string{host, addr, ":" + port}, string(f.Address))
	})
}

// stateOf is a state, or that of what seeks another path.
func stateOf(state string, seekingSince time.Time) string {
	if !seekingSince.IsZero() {
		return "seeking"
	}
	return state
}

// Run shows the links or connections of the processes of this host.
func (c *ssCommand) Run(ctx context.Context, s *streams) error {
	if c.Watch < 0 {
		return misuseError{fmt.Errorf("--watch=%v: want a time above 0", c.Watch)}
	}
	var before survey
	for {
		v, failed, err := c.ask(ctx)
		if err != nil {
			return err
		}
		if err := c.show(s, v, before); err != nil {
			return err
		}
		if hint := v.hint(); hint != nil && v.others != before.others {
			complain(s.err, hint)
		}
		if c.Watch == 0 {
			return failed
		}
		if failed != nil {
			complain(s.err, failed)
		}
		before = v
		select {
		case <-time.After(c.Watch):
		case <-ctx.Done():
			return nil
		}
	}
}

func (c *ssCommand) show(s *streams, v, before survey) error {
	switch {
	case s.json:
		return writeJSON(s.out, v.all)
	case c.Links:
		return printTable(s.out, linkTable(v, before, c.Watch > 0))
	}
	return printTable(s.out, connectionTable(v, before, c.Watch > 0))
}

// printTable prints rows of cells in columns.
func printTable(w io.Writer, rows [][]string) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, cells := range rows {
		shown := make([]string, len(cells))
		for i := range cells {
			shown[i] = cell(cells[i])
		}
		fmt.Fprintln(t, strings.Join(shown, "\t"))
	}
	return t.Flush()
}

// connectionTable has a row for each connection, with what it carries a second if there is a survey
// before.
func connectionTable(v, before survey, rates bool) [][]string {
	table := [][]string{{"PROCESS", "USER", "NUMBER", "CARRIER", "STATE", "LOCAL", "REMOTE", "SENT", "RECEIVED", "SENT/s", "RECEIVED/s", "UNSENT", "UNREAD", "AGE", "PASSED OVER"}}
	rate := v.since(before)
	for _, p := range v.all {
		owner := userName(p.UID)
		for _, c := range p.Connections {
			sent, received := rate(keyOf(&p, &c)).cells()
			table = append(table, []string{process(&p), owner, fmt.Sprint(c.Number), c.Carrier, state(&c, v.at),
				c.Local, c.Remote, size(c.BytesWritten), size(c.BytesReceived), sent, received,
				size(uint64(max(c.Unsent, 0))), unread(&c), age(v.at, c.Began), passedOver(&c)})
		}
	}
	return withRates(table, 9, rates)
}

// linkTable is connectionTable for links.
func linkTable(v, before survey, rates bool) [][]string {
	table := [][]string{{"PROCESS", "USER", "NETWORK", "LOCAL", "REMOTE", "PATH", "CARD", "CONNECTIONS", "MEMORY", "QUEUE", "SENT", "RECEIVED", "SENT/s", "RECEIVED/s", "MOVES", "STATE"}}
	rate := v.since(before)
	cards := host.Root.Cards()
	for _, p := range v.all {
		owner := userName(p.UID)
		for _, l := range p.Links {
			path, state := "", "up"
			if hostOf(l.PathLocal) != hostOf(l.Local) || hostOf(l.PathRemote) != hostOf(l.Remote) {
				path = hostOf(l.PathLocal) + " to " + hostOf(l.PathRemote)
			}
			card := ""
			if at, err := netip.ParseAddr(hostOf(l.PathLocal)); err == nil && l.Network == "rdma" {
				card = cards[at.Unmap().WithZone("")]
			}
			if !l.SeekingSince.IsZero() {
				state = "seeking for " + age(v.at, l.SeekingSince)
			}
			sent, received := rate(keyOfLink(&p, &l)).cells()
			table = append(table, []string{process(&p), owner, strings.TrimSpace(l.Network + " " + l.Transport),
				l.Local, l.Remote, path, card, fmt.Sprint(l.Connections), size(uint64(max(l.Memory, 0))),
				fmt.Sprintf("%d/%d", l.Outstanding, l.SendQueue), size(l.BytesSent), size(l.BytesReceived), sent, received, fmt.Sprint(l.Moves), state})
		}
	}
	return withRates(table, 12, rates)
}

// withRates is a table without its two columns of rates, which begin at a place, unless they are wanted.
func withRates(table [][]string, at int, wanted bool) [][]string {
	for i := range table {
		if !wanted {
			table[i] = slices.Delete(table[i], at, at+2)
		}
	}
	return table
}

func hostOf(addr string) string {
	h, _, _ := net.SplitHostPort(addr)
	return h
}

// key names a connection, by its number, or a link, by its ends, among those of all processes.
type key struct{ process, name string }

func keyOf(p *inspect.Process, c *inspect.Connection) key { return key{p.ID, fmt.Sprint(c.Number)} }

func keyOfLink(p *inspect.Process, l *inspect.Link) key { return key{p.ID, l.Local + " " + l.Remote} }

// moved is bytes, or bytes a second.
type moved struct {
	sent, received uint64
	at             time.Time // when the process has told; zero: nothing is known
}

// carried is what all connections and links have carried.
func (v survey) carried() map[key]moved {
	all := make(map[key]moved)
	for _, p := range v.all {
		for _, c := range p.Connections {
			all[keyOf(&p, &c)] = moved{c.BytesWritten, c.BytesReceived, p.At}
		}
		for _, l := range p.Links {
			all[keyOfLink(&p, &l)] = moved{l.BytesSent, l.BytesReceived, p.At}
		}
	}
	return all
}

// since returns a function of what a connection or a link has carried a second since a survey before.
func (v survey) since(before survey) func(of key) moved {
	now, was := v.carried(), before.carried()
	return func(of key) moved {
		a, b := now[of], was[of]
		seconds := a.at.Sub(b.at).Seconds()
		if b.at.IsZero() || seconds <= 0 || b.sent > a.sent || b.received > a.received {
			return moved{}
		}
		each := func(n uint64) uint64 { return uint64(float64(n) / seconds) }
		return moved{each(a.sent - b.sent), each(a.received - b.received), a.at}
	}
}

func (m moved) cells() (sent, received string) {
	if m.at.IsZero() {
		return "-", "-"
	}
	return size(m.sent), size(m.received)
}

func process(p *inspect.Process) string { return fmt.Sprintf("%s/%d", p.Program, p.PID) }

// userName is the name of a user, or the number of one without.
func userName(uid int) string {
	number := strconv.Itoa(uid)
	if u, err := user.LookupId(number); err == nil {
		return endpoint.Printable(u.Username)
	}
	return number
}

func state(c *inspect.Connection, now time.Time) string {
	if c.SeekingSince.IsZero() {
		return c.State
	}
	return "seeking " + age(now, c.SeekingSince)
}

// unread is what was not read, of the room that there is.
func unread(c *inspect.Connection) string {
	if c.Memory == 0 {
		return "-"
	}
	return size(uint64(max(c.Unread, 0))) + "/" + size(uint64(c.Memory))
}

// passedOver is why no better network carries a connection.
func passedOver(c *inspect.Connection) string {
	var why []string
	for _, r := range c.PassedOver {
		why = append(why, r.Network+": "+r.Code)
	}
	return strings.Join(why, ", ")
}

func size(n uint64) string { return strings.ReplaceAll(humanize.IBytes(n), " ", "") }

func age(now, since time.Time) string {
	if since.IsZero() {
		return "-"
	}
	d := max(now.Sub(since), 0)
	switch {
	case d < time.Minute:
		return d.Round(100 * time.Millisecond).String()
	case d < 48*time.Hour:
		return d.Round(time.Second).String()
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

// clean makes what a process has told of itself, which may be another user's and hostile, such that a
// terminal may show it.
func clean(p *inspect.Process) { printable(reflect.ValueOf(p).Elem()) }

// printable makes all texts in a value printable.
func printable(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(endpoint.Printable(v.String()))
	case reflect.Struct:
		for i := range v.NumField() {
			printable(v.Field(i))
		}
	case reflect.Slice:
		for i := range v.Len() {
			printable(v.Index(i))
		}
	}
}

// cell is a text in a table: not too long, and of characters that take one column each.
func cell(text string) string {
	const most = 64     // columns
	const wide = 0x1100 // from here on characters may take two
	shown := []rune(text)
	shown = shown[:min(len(shown), most)]
	for i, r := range shown {
		if r >= wide || unicode.IsMark(r) {
			shown[i] = '?'
		}
	}
	return string(shown)
}
