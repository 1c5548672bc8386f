package link

import (
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/ringnet/ringnet/internal/machine"
)

// What tests call by its name of the machine.
const (
	firstRing       = machine.FirstRing
	slabSize        = 256 << 10 // what was registered for 16 rings of the first size
	eagerRing       = machine.EagerRing
	sharedRing      = machine.SharedRing
	creditsToGrow   = machine.QuartersToGrow
	closeTimeout    = machine.CloseTimeout
	drainTime       = machine.DrainTime
	portDownTimeout = machine.PortDownTimeout
	unused          = machine.Unused
	worthwhile      = machine.Worthwhile
	maxBatch        = machine.MaxBatch
	minWindow       = machine.MinWindow
	burst           = machine.Burst
)

// shrinkAfter is the time between two looks for idle rings.
func (l *Link) shrinkAfter() time.Duration { return max(l.cfg.LinkIdle, time.Second) }

// setPosting has a batch be posted, or not any more.
func setPosting(m *machine.Link, does bool) {
	if does {
		m.Post()
	} else {
		m.Posted(nil)
	}
}

// field is a field of the machine's, by its path.
func field(of any, path string) reflect.Value {
	v := reflect.ValueOf(of).Elem()
	for name := range strings.SplitSeq(path, ".") {
		if v.Kind() == reflect.Pointer {
			v = v.Elem()
		}
		if v = v.FieldByName(name); !v.IsValid() {
			panic(fmt.Sprintf("%s of %s", name, path))
		}
	}
	return v
}

// at is where a field of the machine's is, by its path.
func at[T any](of any, path string) *T { return (*T)(field(of, path).Addr().UnsafePointer()) }

// waiting is how many streams wait to send.
func waiting(m *machine.Link) (n int) {
	for _, line := range []string{"send.withData", "send.withRecords"} {
		n += field(m, line+".items").Len() - int(field(m, line+".head").Int())
	}
	return n
}
