// Package inspect lets a process that uses package ringnet tell others on the host, who may ask,
// which links and connections it has. Shared memory and RDMA are invisible to ss and lsof.
//
// On Linux a process that has had a connection for a moment listens on a Unix socket in the abstract
// namespace, which goes with the process and leaves no file behind. Its name begins with [prefix],
// so those who ask find it in /proc/net/unix, and ends with random characters, so nobody can take it
// before. Both sides go by the credentials that the kernel tells of the other: the process answers
// its own user and root, and nobody else. One who asks sends a [Request] and gets a [Process], in lines
// of JSON.
package inspect

import (
	"math"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/ringnet/ringnet/internal/link"
)

// Process is one that uses package ringnet, at one moment.
type Process struct {
	ID          string       `json:"id"`  // no two have the same
	PID         int          `json:"pid"` // as the kernel tells the one who asks; 0: outside of its PID namespace
	UID         int          `json:"uid"` // the same
	Program     string       `json:"program"`
	At          time.Time    `json:"at"` // when it has answered
	Memory      Memory       `json:"memory"`
	Polling     int64        `json:"polling_ns"` // how long it has polled, about
	Links       []Link       `json:"links"`
	Connections []Connection `json:"connections"`
	Error       string       `json:"error,omitempty"` // why the request was not carried out
}

// Memory is a ringnet.MemoryInfo: the bytes that a process has registered, and may register.
type Memory struct {
	Used        int `json:"used"`
	Limit       int `json:"limit"`
	Locked      int `json:"locked"`
	LockedLimit int `json:"-"`
}

// Link is a link. Its addresses are what the process says of them.
type Link struct {
	link.Info
	Local      string `json:"local"`
	Remote     string `json:"remote"`
	PathLocal  string `json:"path_local"` // the cards that it goes over
	PathRemote string `json:"path_remote"`
}

// Connection is one end of a connection.
type Connection struct {
	Number  uint64    `json:"number"`  // in its process, for [Request].Kill
	Carrier string    `json:"carrier"` // "shm", "rdma" or "tcp"
	Local   string    `json:"local"`
	Remote  string    `json:"remote"`
	Dialed  bool      `json:"dialed"`
	Began   time.Time `json:"began"`
	link.StreamState
	PassedOver []PassedOver `json:"passed_over,omitempty"` // why no better network carries it
}

// PassedOver is a ringnet.Reason.
type PassedOver struct {
	Network string `json:"network"`
	Code    string `json:"code"`
	Error   string `json:"error"`
}

// Request is what one who asks sends.
type Request struct {
	Kill uint64 `json:"kill,omitempty"` // the number of the connection to end; 0: none
}

// env is the environment variable that switches off that this process answers.
const env = "RINGNET_SS"

// off reports whether the process is not to answer: whatever env is but "on", which is the default.
func off() bool {
	v := os.Getenv(env)
	return v != "" && !strings.EqualFold(v, "on")
}

// settle is how long a process has a connection before it listens, so that those which connect,
// ask and close do not pay for it each time.
const settle = 100 * time.Millisecond

// Answerer answers those who ask, as long as the process holds something that can be seen.
type Answerer struct {
	answer func(Request) Process

	// Links call Hold and Release with their locks held, so no system call is made with this one held.
	mu        sync.Mutex // guards what follows
	held      int
	timer     *time.Timer // of begin
	listening bool        // or about to
	end       func()      // has the socket be closed; nil: there is none
}

// New returns an Answerer. answer describes the process, after it has carried out the request.
func New(answer func(Request) Process) *Answerer {
	a := &Answerer{answer: answer}
	a.timer = time.AfterFunc(math.MaxInt64, a.begin) // which Hold and Release set, in whatever bubble of testing/synctest
	return a
}

// Hold counts something that can be seen.
func (a *Answerer) Hold() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.held++; a.held == 1 {
		a.timer.Reset(settle)
	}
}

// Release takes back a Hold.
func (a *Answerer) Release() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.held--; a.held > 0 {
		return
	}
	a.timer.Stop()
	if a.end != nil {
		a.end()
	}
}

// begin listens, unless nothing is held any more.
func (a *Answerer) begin() {
	a.mu.Lock()
	begins := a.held > 0 && !a.listening && !off()
	a.listening = a.listening || begins
	a.mu.Unlock()
	if begins {
		a.listen()
	}
}

// ended notes that the socket is closed, or could not be made.
func (a *Answerer) ended() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.listening, a.end = false, nil
}
