//go:build !linux

package main

import (
	"fmt"
	"os"
	"runtime"
)

func main() {
	fmt.Fprintf(os.Stderr, "idealcard: it needs Linux, and this is %s\n", runtime.GOOS)
	os.Exit(125)
}
