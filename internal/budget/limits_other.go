//go:build !linux

package budget

// systemLimits has no limits: the only fabric on these systems is the simulated one.
func systemLimits() Limits { return Limits{Unlimited, Unlimited} }
