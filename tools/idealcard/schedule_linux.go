package main

// This file reads a schedule of faults.

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Kinds of faults: card/schedule.c has what they do.
var faultKinds = []string{"qp", "cable", "port", "card", "kill"}

// parseFaults checks a schedule, and returns it as the card reads it.
func parseFaults(text string) (string, error) {
	if text == "" {
		return "", nil
	}
	out := 100 * time.Millisecond
	var kinds []string
	seen := map[string]bool{}
	for word := range strings.SplitSeq(text, ",") {
		at := strings.IndexAny(word, "=@")
		if at < 0 {
			return "", fmt.Errorf("%q: want out=DURATION, KIND=RATE or KIND@N", word)
		}
		name, value := word[:at], word[at+1:]
		if seen[name] {
			return "", fmt.Errorf("%s: it is there twice", name)
		}
		seen[name] = true
		var err error
		switch {
		case name == "out" && word[at] == '=':
			if out, err = time.ParseDuration(value); err == nil && out <= 0 {
				err = errors.New("it must be positive")
			}
		case !slices.Contains(faultKinds, name):
			return "", fmt.Errorf("%q: there are the kinds %s", name, strings.Join(faultKinds, ", "))
		case word[at] == '@':
			var n int64
			if n, err = strconv.ParseInt(value, 10, 64); err == nil && n < 1 {
				err = errors.New("it must be positive")
			}
			kinds = append(kinds, word)
		default:
			var rate float64
			if rate, err = strconv.ParseFloat(value, 64); err == nil && !(rate > 0 && rate < 1) {
				err = errors.New("it is a probability, above 0 and below 1")
			}
			kinds = append(kinds, word)
		}
		if err != nil {
			return "", fmt.Errorf("%q: %w", word, err)
		}
	}
	if len(kinds) == 0 {
		return "", fmt.Errorf("%q: there is no kind of fault: there are %s", text, strings.Join(faultKinds, ", "))
	}
	return fmt.Sprintf("out=%dns,%s", out, strings.Join(kinds, ",")), nil
}
