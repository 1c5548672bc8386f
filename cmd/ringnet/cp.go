package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"github.com/dustin/go-humanize"

	"github.com/ringnet/ringnet/cmd/ringnet/internal/endpoint"
	"github.com/ringnet/ringnet/cmd/ringnet/internal/transfer"
	"github.com/ringnet/ringnet/internal/perf/report"
)

type cpCommand struct {
	What           []string      `arg:"" optional:"" name:"file" help:"The files and folders to send, one after the other, and last HOST or HOST:PORT, where ringnet cp --serve listens (port 7472). - is standard input."`
	Name           string        `placeholder:"NAME" help:"What standard input is called at the other end."`
	Fetch          string        `type:"existingdir" placeholder:"DIR" help:"Fetch the files, by their names there, into this folder."`
	Serve          string        `type:"existingdir" placeholder:"DIR" help:"Receive files into this folder, from whoever connects."`
	Readable       bool          `help:"With --serve, have whoever connects fetch files of the folder, too."`
	Listen         hostPort      `default:":7472" placeholder:"HOST:PORT" help:"With --serve, listen here (${default})."`
	MaxConnections int           `default:"64" placeholder:"N" help:"With --serve, refuse more connections at once (${default}), and keep no more partial files."`
	Retry          time.Duration `default:"1m" help:"When there is no connection, or it breaks, try so long to go on (${default})."`
	Quiet          bool          `short:"q" help:"Show no progress, and not why it tries again."`
}

// Run sends files, or receives some.
func (c *cpCommand) Run(ctx context.Context, s *streams, k *kong.Context) error {
	switch {
	case c.Retry < 0:
		return misuseError{fmt.Errorf("--retry=%v: want a time, or 0 to try once", c.Retry)}
	case c.Serve != "" && len(c.What) > 0:
		return misuseError{errors.New("--serve wants no file to send")}
	case c.Serve != "":
		return c.serve(ctx, s)
	case given(k, "listen", "max-connections", "readable"):
		return misuseError{errors.New("--listen, --max-connections and --readable are for --serve")}
	case len(c.What) < 2:
		return misuseError{errors.New("want FILE... HOST:PORT, or --serve DIR")}
	}
	what, to := c.What[:len(c.What)-1], c.What[len(c.What)-1]
	address, err := whereTo(to)
	if err != nil {
		return misuseError{err}
	}
	if (c.Name != "") != slices.Contains(what, "-") || c.Name != "" && c.Fetch != "" {
		return misuseError{errors.New("--name is for standard input, -, which needs one")}
	}
	if c.Fetch != "" {
		return c.fetchAll(ctx, s, what, address)
	}
	var items []cpItem
	names := make(map[string]bool)
	for _, path := range what {
		name := c.Name
		if path != "-" {
			whole, err := filepath.Abs(path) // . has a name, too
			if err != nil {
				return err
			}
			name = filepath.Base(whole)
		}
		if names[name] {
			return misuseError{fmt.Errorf("two files are called %s", name)}
		}
		names[name] = true
		all, err := itemsOf(path, name)
		if err != nil {
			return err
		}
		items = append(items, all...)
	}
	for _, i := range items {
		if err := c.send(ctx, s, i, address); err != nil {
			return err
		}
	}
	return nil
}

// cpPort is where --serve listens by default.
const cpPort = "7472"

// whereTo is the address of a receiver, whose port is cpPort if none is given.
func whereTo(text string) (address hostPort, err error) {
	full := text
	if _, err := netip.ParseAddr(text); err == nil {
		full = net.JoinHostPort(text, cpPort)
	} else if text != "" && strings.LastIndexByte(text, ':') <= strings.LastIndexByte(text, ']') {
		full = text + ":" + cpPort
	}
	if address.UnmarshalText([]byte(full)) != nil {
		return "", fmt.Errorf("%q: want HOST or HOST:PORT", text)
	}
	return address, nil
}

// cpItem is a file, or a folder with nothing in it, whose name ends in /.
type cpItem struct {
	path, name string
	root       *os.Root // of the folder of the command line that it is in; nil: of none
	inRoot     string   // the path in there
}

// itemsOf returns what is to be sent of a path, under a name.
func itemsOf(path, name string) ([]cpItem, error) {
	if path == "-" {
		return []cpItem{{path: path, name: name}}, nil
	}
	if info, err := os.Stat(path); err != nil || !info.IsDir() {
		return []cpItem{{path: path, name: name}}, isRegular(path)
	}
	root, err := os.OpenRoot(path) // stays open, for open
	if err != nil {
		return nil, err
	}
	var items []cpItem
	err = filepath.WalkDir(path, func(at string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rest, err := filepath.Rel(path, at)
		if err != nil {
			return err
		}
		i := cpItem{at, filepath.ToSlash(filepath.Join(name, rest)), root, rest}
		if d.IsDir() {
			if inside, err := os.ReadDir(at); err != nil || len(inside) > 0 {
				return err
			}
			i.name += "/"
		} else if !d.Type().IsRegular() {
			return fmt.Errorf("%s: not a regular file", at)
		}
		items = append(items, i)
		return nil
	})
	return items, err
}

// silence is how long a peer may be silent before the connection is given up.
const silence = 30 * time.Second

// serve receives files until the context ends.
func (c *cpCommand) serve(ctx context.Context, s *streams) error {
	if c.MaxConnections < 1 {
		return misuseError{errors.New("--max-connections wants a positive value")}
	}
	folder, err := transfer.OpenFolder(c.Serve, c.MaxConnections)
	if err != nil {
		return err
	}
	folder.Readable = c.Readable
	l, err := endpoint.Endpoint{Network: "auto", Address: string(c.Listen)}.Listen(ctx, endpoint.Options{})
	if err != nil {
		return err
	}
	log := s.logger(false)
	log.Info("receives", "address", l.Addr().String(), "into", c.Serve)
	connections := make(chan struct{}, c.MaxConnections)
	return acceptAll(ctx, l, log, func(conn net.Conn) {
		log := log.With("from", conn.RemoteAddr().String(), "over", endpoint.NetworkOf(conn))
		select {
		case connections <- struct{}{}:
			defer func() { <-connections }()
		default:
			endpoint.Reset(conn)
			log.Warn("refused a connection until others end", "max-connections", c.MaxConnections)
			return
		}
		got, err := folder.Serve(patient{conn})
		if err != nil {
			log.Warn("received nothing whole", "error", err)
			return
		}
		said := "received"
		if got.Fetched {
			said = "sent"
		}
		log.Info(said, "file", got.Name, "bytes", got.Size, "sha256", got.SHA256)
	})
}

// patient is a connection whose reads and writes fail after silence.
type patient struct{ net.Conn }

func (p patient) Read(b []byte) (int, error) {
	_ = p.SetReadDeadline(time.Now().Add(silence))
	return p.Conn.Read(b)
}

func (p patient) Write(b []byte) (int, error) {
	_ = p.SetWriteDeadline(time.Now().Add(silence))
	return p.Conn.Write(b)
}

// sentFile describes a file that was sent.
type sentFile struct {
	Name        string  `json:"name"`
	Bytes       int64   `json:"bytes"`
	ResumedFrom int64   `json:"resumed_from"` // where the last connection began
	Seconds     float64 `json:"seconds"`
	Network     string  `json:"network"` // that carried the last connection
	SHA256      string  `json:"sha256"`
}

// send sends a file.
func (c *cpCommand) send(ctx context.Context, s *streams, i cpItem, address hostPort) error {
	file, size, err := open(i)
	if err != nil {
		return err
	}
	defer file.Close()
	return c.untilDone(ctx, s, i.path, &sentFile{Name: i.name, Bytes: size}, func(f *sentFile, p *progress) error {
		return f.attempt(ctx, address, func(conn net.Conn) (err error) {
			sent, err := transfer.Send(conn, f.Name, file, f.Bytes, p.moved)
			f.ResumedFrom, f.SHA256 = sent.From, sent.SHA256
			return err
		})
	})
}

// open opens what is sent of an item. Standard input is kept in a file without a name first, so that its
// size is known, and a connection that breaks does no harm.
func open(i cpItem) (*os.File, int64, error) {
	if strings.HasSuffix(i.name, "/") {
		file, err := os.Open(os.DevNull)
		return file, 0, err
	}
	if i.path == "-" {
		file, err := os.CreateTemp("", "ringnet-cp-")
		if err != nil {
			return nil, 0, err
		}
		_ = os.Remove(file.Name()) // not on Windows
		n, err := io.Copy(file, os.Stdin)
		if err != nil {
			return nil, 0, errors.Join(fmt.Errorf("standard input: %w", err), file.Close())
		}
		return file, n, nil
	}
	if i.root != nil { // in the place of what was found there, others may have put a link by now
		file, info, err := transfer.OpenRegular(i.root, i.inRoot)
		if err != nil {
			return nil, 0, fmt.Errorf("%s: %w", i.path, err)
		}
		return file, info.Size(), nil
	}
	file, err := os.Open(i.path)
	if err != nil {
		return nil, 0, err
	}
	info, err := file.Stat()
	if err != nil {
		return nil, 0, errors.Join(err, file.Close())
	}
	return file, info.Size(), nil
}

// fetchAll fetches files.
func (c *cpCommand) fetchAll(ctx context.Context, s *streams, names []string, address hostPort) error {
	folder, err := transfer.OpenFolder(c.Fetch, 64)
	if err != nil {
		return err
	}
	for _, name := range names {
		err := c.untilDone(ctx, s, name, &sentFile{Name: name}, func(f *sentFile, p *progress) error {
			return f.attempt(ctx, address, func(conn net.Conn) error {
				got, err := folder.Fetch(conn, name, func(n, of int64) {
					p.size = of
					p.moved(n)
				})
				f.Bytes, f.ResumedFrom, f.SHA256 = got.Size, got.From, got.SHA256
				return err
			})
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// untilDone attempts to move a file. When a connection breaks, it goes on over another.
func (c *cpCommand) untilDone(ctx context.Context, s *streams, path string, f *sentFile, attempt func(*sentFile, *progress) error) error {
	began := time.Now()
	show := report.NewProgress(s.err).OnlyOnTerminal().Quiet(c.Quiet)
	defer show.End()
	p := &progress{Progress: show, name: endpoint.Printable(f.Name), size: f.Bytes}
	said := ""
	for lost := began; ; {
		p.done = 0
		err := attempt(f, p)
		if err == nil {
			break
		}
		if p.advanced() {
			lost = time.Now()
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%s: stopped; the same command goes on where it was", path)
		}
		final := errors.As(err, new(transfer.RefusedError)) || errors.Is(err, transfer.ErrStranger)
		if final || time.Since(lost) > c.Retry {
			return fmt.Errorf("%s: %w", path, err)
		}
		if why := err.Error(); !c.Quiet && why != said {
			p.End()
			complain(s.err, fmt.Errorf("%s: %w: tries again", path, err))
			said = why
		}
		select {
		case <-time.After(min(time.Second, c.Retry/4)):
		case <-ctx.Done():
		}
	}
	f.Seconds = time.Since(began).Seconds()
	p.End()
	if s.json {
		return writeJSON(s.out, f)
	}
	fmt.Fprintf(s.out, "%s  %s\n%s over %s in %.1f s, %s/s\n", f.SHA256, endpoint.Printable(f.Name),
		humanize.IBytes(uint64(f.Bytes)), f.Network, f.Seconds, humanize.IBytes(uint64(float64(f.Bytes-f.ResumedFrom)/f.Seconds)))
	return nil
}

// isRegular returns why a file is not read: another might have no end, or never begin.
func isRegular(path string) error {
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s: not a regular file", path)
	}
	return err
}

// attempt moves, over a new connection, the bytes that the receiver does not have yet.
func (f *sentFile) attempt(ctx context.Context, address hostPort, move func(net.Conn) error) error {
	conn, _, err := endpoint.Endpoint{Network: "auto", Address: string(address)}.Dialer(endpoint.Options{})(ctx)
	if err != nil {
		return err
	}
	defer endpoint.Reset(conn)
	defer context.AfterFunc(ctx, func() { endpoint.Reset(conn) })()
	f.Network = endpoint.NetworkOf(conn)
	return move(patient{conn})
}
