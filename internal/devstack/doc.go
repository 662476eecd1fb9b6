// Package devstack runs a private Postgres and a private Redis as child
// processes, for development, demonstrations and tests.
//
// The servers need nothing but their programs to be installed. They keep to one
// data directory, listen on unix sockets, or on loopback if asked to, and never
// outlive the process that started them: on Linux the kernel stops them even
// when that process is killed outright. Elsewhere only Stop does.
//
// Package devtest builds on it to give every test its own database.
package devstack
