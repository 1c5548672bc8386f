package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/ringnet/ringnet/cmd/ringnet/internal/endpoint"
	"github.com/ringnet/ringnet/cmd/ringnet/internal/transfer"
	"github.com/ringnet/ringnet/internal/perf/report"
)

type cpCommand struct {
	What           []string      `arg:"" optional:"" name:"file" help:"The files to send, one after the other, and last HOST:PORT, where ringnet cp --serve listens."`
	Serve          string        `type:"existingdir" placeholder:"DIR" help:"Receive files into this folder, from whoever connects."`
	Listen         *hostPort     `placeholder:"HOST:PORT" help:"With --serve, listen here (:7472)."`
	MaxConnections *int          `help:"With --serve, refuse more connections at once (64), and keep no more partial files."`
	Retry          time.Duration `default:"1m" help:"When there is no connection, or it breaks, try so long to go on (${default})."`
	Quiet          bool          `short:"q" help:"Show no progress, and not why it tries again."`
}

// Run sends files, or receives some.
func (c *cpCommand) Run(ctx context.Context, s *streams) error {
	switch {
	case c.Retry < 0:
		return misuseError{fmt.Errorf("--retry=%v: want a time, or 0 to try once", c.Retry)}
	case c.Serve != "" && len(c.What) > 0:
		return misuseError{errors.New("--serve wants no file to send")}
	case c.Serve != "":
		return c.serve(ctx, s)
	case c.Listen != nil || c.MaxConnections != nil:
		return misuseError{errors.New("--listen and --max-connections are for --serve")}
	case len(c.What) < 2:
		return misuseError{errors.New("want FILE... HOST:PORT, or --serve DIR")}
	}
	files, to := c.What[:len(c.What)-1], c.What[len(c.What)-1]
	var address hostPort
	if err := address.UnmarshalText([]byte(to)); err != nil {
		return misuseError{err}
	}
	names := make(map[string]bool)
	for _, file := range files {
		name := filepath.Base(file)
		if names[name] {
			return misuseError{fmt.Errorf("two files are called %s", name)}
		}
		names[name] = true
		if err := isRegular(file); err != nil {
			return err
		}
	}
	for _, file := range files {
		if err := c.send(ctx, s, file, address); err != nil {
			return err
		}
	}
	return nil
}

// silence is how long a peer may be silent before the connection is given up.
const silence = 30 * time.Second

// serve receives files until the context ends.
func (c *cpCommand) serve(ctx context.Context, s *streams) error {
	listen, most := hostPort(":7472"), 64
	if c.Listen != nil {
		listen = *c.Listen
	}
	if c.MaxConnections != nil {
		most = *c.MaxConnections
	}
	if most < 1 {
		return misuseError{errors.New("--max-connections wants a positive value")}
	}
	folder, err := transfer.OpenFolder(c.Serve, most)
	if err != nil {
		return err
	}
	l, err := endpoint.Endpoint{Network: "auto", Address: string(listen)}.Listen(ctx, endpoint.Options{})
	if err != nil {
		return err
	}
	log := s.logger(false)
	log.Info("receives", "address", l.Addr().String(), "into", c.Serve)
	connections := make(chan struct{}, most)
	return acceptAll(ctx, l, log, func(conn net.Conn) {
		log := log.With("from", conn.RemoteAddr().String(), "over", endpoint.NetworkOf(conn))
		select {
		case connections <- struct{}{}:
			defer func() { <-connections }()
		default:
			endpoint.Reset(conn)
			log.Warn("refused a connection until others end", "max-connections", most)
			return
		}
		got, err := folder.Receive(patient{conn})
		if err != nil {
			log.Warn("received nothing whole", "error", err)
			return
		}
		log.Info("received", "file", got.Name, "bytes", got.Size, "sha256", got.SHA256)
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

// send sends a file. When a connection breaks, it goes on over another.
func (c *cpCommand) send(ctx context.Context, s *streams, path string, address hostPort) error {
	if err := isRegular(path); err != nil {
		return err
	}
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	began := time.Now()
	f := sentFile{Name: filepath.Base(path), Bytes: info.Size()}
	show := report.NewProgress(s.err).OnlyOnTerminal().Quiet(c.Quiet)
	defer show.End()
	p := &progress{Progress: show, name: endpoint.Printable(f.Name), size: f.Bytes}
	said := ""
	to := endpoint.Endpoint{Network: "auto", Address: string(address)}
	for lost := began; ; {
		err := f.attempt(ctx, to, file, p)
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

// isRegular returns why a file is not sent. To open a pipe might take for ever.
func isRegular(path string) error {
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s: not a regular file", path)
	}
	return err
}

// attempt sends, over a new connection, the bytes that the other end does not have yet.
func (f *sentFile) attempt(ctx context.Context, to endpoint.Endpoint, file io.ReadSeeker, p *progress) error {
	conn, _, err := to.Dialer(endpoint.Options{})(ctx)
	if err != nil {
		return err
	}
	defer endpoint.Reset(conn)
	defer context.AfterFunc(ctx, func() { endpoint.Reset(conn) })()
	f.Network = endpoint.NetworkOf(conn)
	p.done = 0
	sent, err := transfer.Send(patient{conn}, f.Name, file, f.Bytes, p.moved)
	if err != nil {
		return err
	}
	f.ResumedFrom, f.SHA256 = sent.From, sent.SHA256
	return nil
}
