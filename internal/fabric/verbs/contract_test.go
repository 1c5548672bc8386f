//go:build linux && cgo

package verbs

import (
	"testing"

	"github.com/ringnet/ringnet/internal/fabric/fabrictest"
)

func TestContract(t *testing.T) { fabrictest.Test(t, pair) }
