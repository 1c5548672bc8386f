// Package programs starts programs of Debian packages for tests: servers that
// ringnet is to carry, unchanged. Tests without them skip, unless CI or
// RINGNET_REQUIRE_PROGRAMS is in the environment.
package programs
