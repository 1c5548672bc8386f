package ringnet

// What `ringnet ss` and `ringnet kill` ask of this process.

import (
	"context"
	"os"
	"path/filepath"

	"github.com/ringnet/ringnet/internal/inspect"
	"github.com/ringnet/ringnet/internal/link"
	"github.com/ringnet/ringnet/internal/pollers"
	"github.com/ringnet/ringnet/rconn"
)

// answerer answers those who ask for the links and connections of this process.
var answerer = inspect.New(describeProcess)

// describeProcess describes this process, once it has carried out the request.
func describeProcess(r inspect.Request) inspect.Process {
	p := inspect.Process{
		Program: filepath.Base(os.Args[0]),
		Memory:  inspect.Memory(Memory()),
		Polling: int64(pollers.Time()),
	}
	if r.Kill != 0 {
		if err := kill(r.Kill); err != nil {
			p.Error = err.Error()
		}
		return p
	}
	for _, i := range link.List() {
		l := rconn.LinkInfoOf(i)
		p.Links = append(p.Links, inspect.Link{
			Info: i, Local: l.Local.String(), Remote: l.Remote.String(),
			PathLocal: l.Path.Local.String(), PathRemote: l.Path.Remote.String(),
		})
	}
	enough, cancel := context.WithTimeout(context.Background(), describing)
	defer cancel()
	busy := make(map[*link.Link]bool)
	for _, c := range openConnections() {
		p.Connections = append(p.Connections, c.describe(enough.Done(), busy))
	}
	return p
}
