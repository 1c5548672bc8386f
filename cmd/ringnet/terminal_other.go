//go:build !linux

package main

import (
	"context"
	"errors"
	"os"
	"time"
)

// On other systems than Linux no process can be asked, and there is nothing to show.

func terminalSize(*os.File) (width, height int, err error) { return 0, 0, errors.ErrUnsupported }

func notifyResized() (resized <-chan os.Signal, stop func()) { return nil, func() {} }

func notifySuspended() (suspended <-chan os.Signal, suspend func(context.Context), ignore func()) {
	return nil, func(context.Context) {}, func() {}
}

func processorTimes(survey) map[int]time.Duration { return nil }
