// Command dlq-replay: see its --help.
package main

import (
	"os"

	"github.com/penstock-dev/penstock/internal/cli"
)

func main() { os.Exit(cli.Main(cli.DLQReplay())) }
