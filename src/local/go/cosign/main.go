// cosign without the clients of key management services, for tests of signatures.
package main

import (
	"os"

	"github.com/sigstore/cosign/v3/cmd/cosign/cli"
)

func main() {
	// It prints the error itself.
	if cli.New().Execute() != nil {
		os.Exit(1)
	}
}
