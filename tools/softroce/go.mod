module github.com/ringnet/ringnet/tools/softroce

go 1.25.0

require (
	github.com/gofrs/flock v0.12.1
	golang.org/x/sys v0.47.0
)
