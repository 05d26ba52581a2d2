// The registry of github.com/distribution/distribution with its storage in a folder, for tests of packages. With all storage drivers it
// would have twice as many packages. It ends when its standard input is closed, so that it does not outlive a test that is killed.
package main

import (
	"io"
	"os"

	"github.com/distribution/distribution/v3/registry"

	_ "github.com/distribution/distribution/v3/registry/auth/htpasswd"
	_ "github.com/distribution/distribution/v3/registry/storage/driver/filesystem"
)

func main() {
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	if registry.RootCmd.Execute() != nil {
		os.Exit(1)
	}
}
