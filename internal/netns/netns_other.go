//go:build !linux

package netns

// Current returns 0: there are no namespaces.
func Current() Namespace { return 0 }

// Entry is always nil.
type Entry struct{}

// Enter returns nil.
func (n Namespace) Enter() (*Entry, error) { return nil, nil }

func (n Namespace) open() (*Entry, error) { return nil, nil }

// Close does nothing.
func (e *Entry) Close() {}

// Do calls f.
func (e *Entry) Do(f func()) error {
	f()
	return nil
}

// Go calls f in another goroutine.
func (e *Entry) Go(f func()) error {
	go f()
	return nil
}
