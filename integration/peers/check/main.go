// Command check exits with 1, and a sentence for each program, if a program that the tests run beside Manx is missing
// or has an unsupported version.
package main

import (
	"fmt"
	"os"

	"github.com/manxnet/manx/integration/peers"
)

func main() {
	if err := peers.Check(); err != nil {
		fmt.Fprintf(os.Stderr, "the tests cannot run with the programs of this host:\n%v\n", err)
		os.Exit(1)
	}
}
