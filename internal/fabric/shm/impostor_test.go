//go:build linux

package shm

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
)

func init() {
	programs["impostor"] = impostorProgram
	programs["echo everywhere"] = echoEverywhere
}

// impostorProgram listens by another user's plain name, and speaks the protocol.
func impostorProgram(at netip.AddrPort, args []string) error {
	f, err := New(Config{Trust: func(uint32) bool { return true }})
	if err != nil {
		return err
	}
	s, err := f.(*shm).listenBy(args[0])
	if err != nil {
		return err
	}
	l := f.(*shm).newListener(s, at, 16, nil)
	fmt.Println("ready")
	acceptAll(l)
	return nil
}

// echoEverywhere listens at a port of all addresses.
func echoEverywhere(at netip.AddrPort, _ []string) error {
	f, err := New(Config{})
	if err != nil {
		return err
	}
	l, err := f.Listen(netip.AddrPortFrom(netip.Addr{}, at.Port()), 16)
	if err != nil {
		return err
	}
	fmt.Println("ready")
	acceptAll(l)
	return nil
}

// A dialer reaches the listener of its own user though another user, whom it trusts, has taken that one's name.
func TestDialersPreferTheirOwnUsersListenerToATrustedUserWithItsName(t *testing.T) {
	startAs(t, third, "impostor", place(), nameOf(listenerName, stranger, "", place()))
	startAs(t, stranger, "echo", place(), "trust") // gets another name
	requireReached(t, stranger)
}

// A listener at all addresses has a name that comes behind those of each address.
func TestDialersPreferTheirOwnUsersListenerToATrustedUserWithAMoreExactName(t *testing.T) {
	startAs(t, stranger, "echo everywhere", place(), "trust")
	requireReached(t, stranger)
	startAs(t, third, "impostor", place(), nameOf(listenerName, stranger, "", place()))
	requireReached(t, stranger)
}

// requireReached has a process of a user dial, which trusts all, and requires that it reaches that user's listener.
func requireReached(t *testing.T, uid uint32) {
	t.Helper()
	said, err := asUser(t, place(), user(uid), "trust")
	assert.NoError(t, err, said)
	assert.Equal(t, fmt.Sprintln(uid), said)
}
