//go:build !linux

package main

import (
	"fmt"
	"os"
	"runtime"
)

func main() {
	fmt.Fprintf(os.Stderr, "softroce: soft-RoCE and its guests need Linux, and this is %s\n", runtime.GOOS)
	os.Exit(125)
}
