package ringnet

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/auto"
	"github.com/ringnet/ringnet/internal/budget"
	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/link"
	"github.com/ringnet/ringnet/internal/transport"
)

func TestReasonsHaveCodes(t *testing.T) {
	for code, errs := range map[ReasonCode][]error{
		ReasonSwitchedOff:  {auto.ErrOff},
		ReasonUnsupported:  {fmt.Errorf("RDMA: %w", errors.ErrUnsupported)},
		ReasonNoLibrary:    {fmt.Errorf("RDMA: %w: %w", errors.ErrUnsupported, fabric.ErrNoLibrary)},
		ReasonNoDevice:     {fmt.Errorf("%w: %w", errors.ErrUnsupported, syscall.ENODEV), fabric.ErrDeviceRemoved},
		ReasonPermission:   {fmt.Errorf("%w: %w", errors.ErrUnsupported, fs.ErrPermission), syscall.EACCES},
		ReasonLockedMemory: {&budget.ShortageError{Of: budget.LockedMemory}, fmt.Errorf("%w: %w", syscall.EPERM, fabric.ErrLockedMemory)},
		ReasonMemory:       {&budget.ShortageError{}, syscall.ENOMEM},
		ReasonInUse:        {syscall.EADDRINUSE},
		ReasonOtherHost:    {fmt.Errorf("%w: %w", fabric.ErrOtherHost, syscall.ECONNREFUSED)},
		ReasonOtherUser:    {fmt.Errorf("%w: %w", fabric.ErrOtherUser, syscall.EACCES)},
		ReasonNoListener:   {os.NewSyscallError("connect", syscall.ECONNREFUSED)},
		ReasonFull:         {&fabric.RefusedError{Busy: true}},
		ReasonRefused:      {&fabric.RefusedError{}},
		ReasonElsewhere:    {auto.ErrElsewhere, auto.ErrUnsure, auto.ErrUnmet},
		ReasonUnreachable:  {syscall.EHOSTUNREACH, syscall.ENETUNREACH},
		ReasonSilent:       {syscall.ETIMEDOUT, transport.ContextError(context.DeadlineExceeded), context.DeadlineExceeded},
		ReasonNotTried:     {auto.ErrTCPFirst, auto.ErrNoTCP, auto.ErrSlowTCP},
		ReasonReset:        {syscall.ECONNRESET, fmt.Errorf("%w (%w)", syscall.ECONNRESET, fabric.ErrQueuePair)},
		ReasonProtocol:     {&link.ProtocolError{}},
		ReasonCanceled:     {transport.ContextError(context.Canceled), context.Canceled},
		ReasonOther:        {errors.New("anything")},
	} {
		for _, err := range errs {
			r := Reason{"rdma", codeOf(err), err}
			require.Equal(t, code, r.Code, "%v", err)
			require.ErrorIs(t, r, err)
			require.Equal(t, "rdma: "+err.Error(), r.Error())
		}
	}
}

// everyReason returns all codes.
func everyReason(t *testing.T) (codes []ReasonCode) {
	t.Helper()
	source, err := os.ReadFile("reason.go")
	require.NoError(t, err)
	for _, code := range regexp.MustCompile(`ReasonCode = "([a-z-]+)"`).FindAllSubmatch(source, -1) {
		codes = append(codes, ReasonCode(code[1]))
	}
	require.NotEmpty(t, codes)
	return codes
}

// Each new reason has to be in one of the two lists.
func TestReasonsLastOrPass(t *testing.T) {
	last := []ReasonCode{
		ReasonUnsupported, ReasonNoLibrary, ReasonNoDevice, ReasonPermission, ReasonInUse, ReasonOtherHost, ReasonOtherUser,
		ReasonNoListener, ReasonRefused, ReasonElsewhere, ReasonUnreachable, ReasonSilent,
	}
	pass := []ReasonCode{
		ReasonSwitchedOff, ReasonLockedMemory, ReasonMemory, ReasonFull, ReasonNotTried, ReasonReset, ReasonProtocol,
		ReasonCanceled, ReasonOther,
	}
	for _, code := range last {
		require.True(t, code.lasts(), code)
	}
	for _, code := range pass {
		require.False(t, code.lasts(), code)
	}
	require.ElementsMatch(t, everyReason(t), append(last, pass...))
}
