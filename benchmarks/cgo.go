package main

// static void nothing(void) {}
import "C"

const haveCgo = true

// cgoCrossings calls a C function that does nothing.
func cgoCrossings(n int) {
	for range n {
		C.nothing()
	}
}
