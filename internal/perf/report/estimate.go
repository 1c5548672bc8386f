package report

import (
	"math"
	"slices"

	"golang.org/x/perf/benchmath"
)

// Estimate is a median, and the interval that holds it with a confidence of 95 %,
// whatever the distribution is. Fewer than ForInterval values give none: Low and High
// are 0 then.
type Estimate struct {
	Median float64 `json:"median"`
	Low    float64 `json:"low,omitzero"`
	High   float64 `json:"high,omitzero"`
}

const confidence = 0.95

// NewEstimate is 0 if a value is unknown (NaN or infinite), or there is none.
func NewEstimate(values []float64) Estimate {
	if len(values) == 0 {
		return Estimate{}
	}
	s := benchmath.AssumeNothing.Summary(benchmath.NewSample(slices.Clone(values), &benchmath.DefaultThresholds), confidence)
	e := Estimate{s.Center, s.Lo, s.Hi}
	switch {
	case !Known(e.Median):
		return Estimate{}
	case !Known(e.Low) || !Known(e.High):
		return Estimate{Median: e.Median}
	}
	return e
}

// Known reports whether x is a number, for which JSON has a word.
func Known(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

// ForInterval is how many values there have to be for an interval.
const ForInterval = 6

// Text shows the median, and behind it the interval, if there is one: in percent of the
// median, unless that says nothing because a bound is further away than 0 is.
func (e Estimate) Text(show func(float64) string) string {
	switch {
	case e.Low == 0 && e.High == 0:
		return show(e.Median)
	case max(e.High-e.Median, e.Median-e.Low) > e.Median:
		return show(e.Median) + " (" + show(e.Low) + " to " + show(e.High) + ")"
	}
	return show(e.Median) + " ±" + benchmath.Summary{Center: e.Median, Lo: e.Low, Hi: e.High}.PctRangeString()
}
