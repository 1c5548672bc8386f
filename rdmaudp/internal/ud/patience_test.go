//go:build linux && cgo

package ud

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/fabric"
	"github.com/ringnet/ringnet/internal/wire"
)

var errFull error = &fabric.RejectError{Reason: fabric.RejectConsumer, Private: wire.Full.Append(nil)}

// Whoever has no room is asked again until it says something else.
func TestPatience(t *testing.T) {
	for _, last := range []error{nil, errors.New("broken"), &fabric.RejectError{Reason: fabric.RejectNoListener}} {
		synctest.Test(t, func(t *testing.T) {
			tries := 0
			err := patiently(t.Context(), func() error {
				if tries++; tries < 4 {
					return errFull
				}
				return last
			})
			require.Equal(t, last, err)
			require.Equal(t, 4, tries)
		})
	}
}

// Whoever has been asked until there is no more time has had no room, and is there.
func TestPatienceEnds(t *testing.T) {
	for name, last := range map[string]func(ctx context.Context) error{
		"full": func(context.Context) error { return errFull },
		"none": func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				start, tries := time.Now(), 0
				err := patiently(ctx, func() error {
					if tries++; tries == 1 {
						return errFull
					}
					return last(ctx)
				})
				require.Equal(t, errFull, err)
				require.Equal(t, 5*time.Second, time.Since(start))
			})
		})
	}
}
