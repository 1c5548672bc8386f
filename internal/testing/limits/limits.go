// Package limits skips tests that need more than this process may have.
package limits
