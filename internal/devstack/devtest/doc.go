// Package devtest gives tests databases of their own on real servers.
//
// The servers are shared. When PENSTOCK_TEST_POSTGRES_URL or
// PENSTOCK_TEST_REDIS_URL is set, that server serves every test process;
// otherwise each test process starts one on first use. The command
// with-servers, next to this package, sets both for a whole `go test ./...`:
//
//	go run ./internal/devstack/with-servers -- go test ./...
package devtest
