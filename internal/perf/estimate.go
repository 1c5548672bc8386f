package perf

import (
	"math"
	"slices"

	"golang.org/x/perf/benchmath"
)

// Estimate is a median, and the interval that holds it with a confidence of 95 %,
// whatever the distribution is. Fewer than six values give no interval: Low and High
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

// Known says whether x is a number, for which JSON has a word.
func Known(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

// PlusMinus is the interval in percent of the median, or "" if there is none.
func (e Estimate) PlusMinus() string {
	if e.Low == 0 && e.High == 0 {
		return ""
	}
	return "±" + benchmath.Summary{Center: e.Median, Lo: e.Low, Hi: e.High}.PctRangeString()
}
