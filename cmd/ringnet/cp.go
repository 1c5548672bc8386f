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
	slashpath "path"
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
	items, err := c.items(what)
	if err != nil {
		return err
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
	open       func() (*os.File, error)
}

// items returns what is to be sent of some paths: nothing if one of them cannot be.
func (c *cpCommand) items(paths []string) (items []cpItem, err error) {
	names := make(map[string]bool)
	for _, path := range paths {
		name := c.Name
		if path != "-" {
			whole, err := filepath.Abs(path) // . has a name, too
			if err != nil {
				return nil, err
			}
			name = filepath.Base(whole)
		}
		if names[name] {
			return nil, misuseError{fmt.Errorf("two files are called %s", name)}
		}
		names[name] = true
		all, err := itemsOf(path, name)
		if err != nil {
			return nil, err
		}
		items = append(items, all...)
	}
	return items, nil
}

// itemsOf returns what is to be sent of a path, under a name.
func itemsOf(path, name string) ([]cpItem, error) {
	if path == "-" {
		return []cpItem{{path, name, keepInput}}, nil
	}
	if info, err := os.Stat(path); err != nil || !info.IsDir() {
		return []cpItem{{path, name, func() (*os.File, error) { return os.Open(path) }}}, isRegular(path)
	}
	root, err := os.OpenRoot(path) // stays open, for the items
	if err != nil {
		return nil, err
	}
	var items []cpItem
	err = fs.WalkDir(root.FS(), ".", func(inside string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		i := cpItem{path: filepath.Join(path, inside), name: slashpath.Join(name, inside)}
		i.open = func() (*os.File, error) {
			file, err := transfer.OpenRegular(root, inside) // in its place others may have put a link by now
			if err != nil {
				err = fmt.Errorf("%s: %w", i.path, err)
			}
			return file, err
		}
		if d.IsDir() {
			if all, err := fs.ReadDir(root.FS(), inside); err != nil || len(all) > 0 {
				return err
			}
			i.name += "/"
			i.open = func() (*os.File, error) { return os.Open(os.DevNull) }
		} else if !d.Type().IsRegular() {
			return fmt.Errorf("%s: not a regular file", i.path)
		}
		items = append(items, i)
		return nil
	})
	return items, err
}

// isRegular returns why a file is not read: another might have no end, or never begin.
func isRegular(path string) error {
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s: not a regular file", path)
	}
	return err
}

// keepInput keeps standard input in a file without a name, so that its size is known, and a connection that
// breaks does no harm.
func keepInput() (*os.File, error) {
	file, err := os.CreateTemp("", "ringnet-cp-")
	if err != nil {
		return nil, err
	}
	_ = os.Remove(file.Name()) // not on Windows
	if _, err := io.Copy(file, os.Stdin); err != nil {
		return nil, errors.Join(fmt.Errorf("standard input: %w", err), file.Close())
	}
	return file, nil
}

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
	log := s.logger(false).With("into", c.Serve)
	connections := make(chan struct{}, c.MaxConnections)
	return serveAuto(ctx, c.Listen, log, "receives", func(conn net.Conn) {
		log := log.With("from", conn.RemoteAddr().String(), "over", endpoint.NetworkOf(conn))
		select {
		case connections <- struct{}{}:
			defer func() { <-connections }()
		default:
			endpoint.Reset(conn)
			log.Warn("refused a connection until others end", "max-connections", c.MaxConnections)
			return
		}
		file, err := folder.Serve(conn)
		if err != nil {
			log.Warn("received nothing whole", "error", err)
			return
		}
		said := "received"
		if file.Sent {
			said = "sent"
		}
		log.Info(said, "file", file.Name, "bytes", file.Size, "sha256", file.SHA256)
	})
}

// sentFile describes a file that was sent.
type sentFile struct {
	transfer.File
	Seconds float64 `json:"seconds"`
	Network string  `json:"network"` // that carried the last connection
}

// send sends a file.
func (c *cpCommand) send(ctx context.Context, s *streams, i cpItem, address hostPort) error {
	file, err := i.open()
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	p := c.progress(s, i.name, info.Size())
	return c.untilDone(ctx, s, i.path, address, p, func(conn net.Conn) (transfer.File, error) {
		return transfer.Send(conn, i.name, file, p.size, p.moved)
	})
}

// fetchAll fetches files.
func (c *cpCommand) fetchAll(ctx context.Context, s *streams, names []string, address hostPort) error {
	folder, err := transfer.OpenFolder(c.Fetch, 64)
	if err != nil {
		return err
	}
	for _, name := range names {
		p := c.progress(s, name, 0)
		err := c.untilDone(ctx, s, name, address, p, func(conn net.Conn) (transfer.File, error) {
			return folder.Fetch(conn, name, func(n, of int64) {
				p.size = of
				p.moved(n)
			})
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// untilDone moves a file. When a connection breaks, it goes on over another.
func (c *cpCommand) untilDone(ctx context.Context, s *streams, path string, address hostPort, p *progress, move func(net.Conn) (transfer.File, error)) error {
	defer p.End()
	began := time.Now()
	lost, most, said := began, int64(0), ""
	for {
		p.done = 0
		file, network, err := attempt(ctx, address, move)
		if err == nil {
			p.End()
			return s.sent(sentFile{file, time.Since(began).Seconds(), network})
		}
		if p.done > most {
			lost, most = time.Now(), p.done
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
}

// attempt moves, over a new connection, the bytes that the receiver does not have yet.
func attempt(ctx context.Context, address hostPort, move func(net.Conn) (transfer.File, error)) (file transfer.File, network string, err error) {
	conn, _, err := endpoint.Endpoint{Network: "auto", Address: string(address)}.Dialer(endpoint.Options{})(ctx)
	if err != nil {
		return file, "", err
	}
	defer endpoint.Reset(conn)
	defer context.AfterFunc(ctx, func() { endpoint.Reset(conn) })()
	file, err = move(conn)
	return file, endpoint.NetworkOf(conn), err
}

// sent says what was sent.
func (s *streams) sent(f sentFile) error {
	if s.json {
		return writeJSON(s.out, f)
	}
	_, err := fmt.Fprintf(s.out, "%s  %s\n%s over %s in %.1f s, %s/s\n", f.SHA256, endpoint.Printable(f.Name),
		humanize.IBytes(uint64(f.Size)), f.Network, f.Seconds, humanize.IBytes(uint64(float64(f.Size-f.From)/f.Seconds)))
	return err
}

// progress is how much of a file has been moved.
type progress struct {
	*report.Progress
	name       string
	size, done int64 // bytes; done in this attempt
}

func (c *cpCommand) progress(s *streams, name string, size int64) *progress {
	return &progress{report.NewProgress(s.err).OnlyOnTerminal().Quiet(c.Quiet), endpoint.Printable(name), size, 0}
}

// moved adds n bytes to the attempt.
func (p *progress) moved(n int64) {
	if p.done += n; p.Due(time.Now()) {
		p.Show("%s: %s of %s, %d %%", p.name, humanize.IBytes(uint64(p.done)), humanize.IBytes(uint64(p.size)), 100*p.done/max(p.size, 1))
	}
}
