module github.com/ringnet/ringnet/tools/idealcard

go 1.25.0

require (
	github.com/creack/pty v1.1.24
	github.com/stretchr/testify v1.12.1
	golang.org/x/sys v0.47.0
	golang.org/x/term v0.45.0
)

require go.yaml.in/yaml/v3 v3.0.5 // indirect
