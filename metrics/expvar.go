package metrics

import (
	"expvar"
	"math"
)

// Publish declares an expvar with the given name that holds all metrics, those of
// the process and those of the host's devices: an object with the names of the
// metrics, without "ringnet_". A metric without labels is a number, or null if it is
// infinite. One with labels is an object with the values of the first label, in which
// are numbers, or objects with those of the next. Publish panics if the name is taken.
func Publish(name string) {
	expvar.Publish(name, expvar.Func(func() any { return snapshot() }))
}

// snapshot is all metrics as expvar shows them.
func snapshot() map[string]any {
	all := make(map[string]any)
	for _, s := range sources() {
		s.read(func(d *Description, value float64, labels ...string) {
			put(all, append([]string{d.Name[len(prefix):]}, labels...), value)
		})
	}
	return all
}

// put puts a value at the end of a path through objects in objects.
func put(object map[string]any, path []string, value float64) {
	for _, name := range path[:len(path)-1] {
		next, ok := object[name].(map[string]any)
		if !ok {
			next = make(map[string]any)
			object[name] = next
		}
		object = next
	}
	if math.IsInf(value, 0) { // which JSON has no word for
		object[path[len(path)-1]] = nil
		return
	}
	object[path[len(path)-1]] = value
}
