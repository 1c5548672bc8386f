//go:build !race

package integration_test

const shadow = 1
