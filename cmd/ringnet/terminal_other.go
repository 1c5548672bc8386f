//go:build !linux

package main

import (
	"os"
	"time"
)

// On other systems than Linux no process can be asked, and there is nothing to show.

func notifyTerminal(_, _ chan<- os.Signal) {}

func suspend() {}

func takeKeys(*os.File) (undo func()) { return func() {} }

func processorTimes(survey) map[int]time.Duration { return nil }
