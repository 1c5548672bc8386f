package transport

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ringnet/ringnet/internal/link"
)

// What a link is made with, beside its Config, is not what it is known by: another dial may be given others.
func TestTheKeyOfALinkHasWhatIdentifiesIt(t *testing.T) {
	key := reflect.TypeFor[linkKey]()
	for _, f := range reflect.VisibleFields(key) {
		wiring := []reflect.Kind{reflect.Pointer, reflect.Func, reflect.Chan}
		require.NotContains(t, wiring, f.Type.Kind(), f.Name)
		if f.Type.Kind() != reflect.Struct || f.Type.PkgPath() != reflect.TypeFor[link.Config]().PkgPath() {
			continue
		}
		for _, in := range reflect.VisibleFields(f.Type) {
			require.NotContains(t, append(wiring, reflect.Interface), in.Type.Kind(), "%s.%s", f.Name, in.Name)
		}
	}
}
