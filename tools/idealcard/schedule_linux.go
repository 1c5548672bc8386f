package main

// This file reads a schedule of faults.

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// faultWord matches a word of a schedule: card/schedule.c has what the kinds do.
var faultWord = regexp.MustCompile(`^(?:out=(.+)|(?:qp|cable|port|card|kill)(?:@([1-9]\d{0,17})|=(.+)))$`)

// parseFaults checks a schedule, and returns it as the card reads it.
func parseFaults(text string) (string, error) {
	if text == "" {
		return "", nil
	}
	words := strings.Split(text, ",")
	for i, word := range words {
		parts := faultWord.FindStringSubmatch(word)
		if parts == nil {
			return "", fmt.Errorf("%q: want out=DURATION, KIND=RATE or KIND@N; there are the kinds qp, cable, port, card and kill", word)
		}
		var err error
		if out := parts[1]; out != "" {
			var d time.Duration
			if d, err = time.ParseDuration(out); err == nil && d <= 0 {
				err = errors.New("it must be positive")
			}
			words[i] = fmt.Sprintf("out=%dns", d)
		} else if rate := parts[3]; rate != "" {
			var r float64
			if r, err = strconv.ParseFloat(rate, 64); err == nil && !(r > 0 && r < 1) {
				err = errors.New("it is a probability, above 0 and below 1")
			}
		}
		if err != nil {
			return "", fmt.Errorf("%q: %w", word, err)
		}
	}
	return strings.Join(words, ","), nil
}
