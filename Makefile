# Everything a fresh machine needs is installed by the targets themselves: on
# Debian and Ubuntu as root by apt-get, elsewhere tools/softroce says what to
# install.

GO       ?= go
SOFTROCE := bin/softroce
GOSRC    = $(shell $(GO) env GOROOT)/src

# The packages whose tests want an RDMA device.
RDMA := . ./rconn ./internal/fabric/verbs ./internal/integration

.PHONY: demo test check unit cross test-rdma soak clean

# An unmodified net/http client fetches Go's own sources from an unmodified
# net/http server in another process, over RDMA.
demo: $(SOFTROCE)
	cd examples && CGO_ENABLED=1 $(GO) build -o ../bin/demo/ ./http/...
	$(SOFTROCE) -timeout 15m -- bin/demo/demo -bin bin/demo -dir $(GOSRC) net crypto

test: check unit cross test-rdma

check:
	@files=$$(gofmt -l .); test -z "$$files" || { echo "not formatted: $$files"; exit 1; }
	$(GO) vet ./...
	cd examples && $(GO) vet ./...

unit:
	$(GO) test -race -shuffle=on ./...

# Builds without cgo and for systems without RDMA have stubs that say so.
cross:
	CGO_ENABLED=0 $(GO) vet ./...
	CGO_ENABLED=0 $(GO) test .
	CGO_ENABLED=0 GOOS=linux GOARCH=arm64 $(GO) vet ./...
	CGO_ENABLED=0 GOOS=darwin GOARCH=arm64 $(GO) vet ./...
	CGO_ENABLED=0 GOOS=windows GOARCH=amd64 $(GO) vet ./...

clean:
	rm -rf bin

$(SOFTROCE): $(wildcard tools/softroce/*)
	$(GO) build -o $@ ./tools/softroce
