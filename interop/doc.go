// Package interop has no code of its own. Its tests run what other people wrote for package net
// over ringnet, unchanged: the interoperability cases of gRPC, net/http, httputil.ReverseProxy,
// crypto/tls, go-redis with a real redis-server, pgx with a real PostgreSQL, NATS with its server,
// memberlist, etcd (with the build tag of that name), and the drivers of MongoDB and MySQL with
// stand-ins for the servers. Each runs over shm, over auto, and over rdma where there is a device:
//
//	go test ./...
//	go test -exec 'softroce --' ./...
//
// With RINGNET_REQUIRE_RDMA in the environment a missing device is a failure,
// with RINGNET_REQUIRE_PROGRAMS or CI a missing redis-server or PostgreSQL is.
package interop
