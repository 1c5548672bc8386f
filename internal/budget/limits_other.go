//go:build !linux

package budget

// systemLimits sets none: there is no fabric on these systems but the simulated one.
func systemLimits() Limits { return Limits{Unlimited, Unlimited} }
