// Smaller registries, for tests of packages: `registries NAME FOLDER` serves one of them on a free port of 127.0.0.1 and writes its address
// to standard error. It ends when its standard input is closed, so that it does not outlive a test that is killed.
package main

import (
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"os"

	"cuelabs.dev/go/oci/ociregistry/ocimem"
	"cuelabs.dev/go/oci/ociregistry/ociserver"
	"github.com/docker/distribution/configuration"
	"github.com/docker/distribution/registry/handlers"
	"github.com/google/go-containerregistry/pkg/registry"

	_ "github.com/docker/distribution/registry/storage/driver/filesystem"
)

// The folder is used by those that do not store in memory.
func handler(name, folder string) http.Handler {
	switch name {
	// What the image `registry:2` runs. It has no API for referrers.
	case "distribution-2":
		config := &configuration.Configuration{Storage: configuration.Storage{"filesystem": {"rootdirectory": folder}}}
		// The default of a configuration that is read from a file.
		config.Catalog.MaxEntries = 1000
		return handlers.NewApp(context.Background(), config)
	// What `crane registry serve` runs, with the API for referrers.
	case "go-containerregistry":
		return registry.New(registry.WithReferrersSupport(true))
	// That of CUE, with the API for referrers.
	case "ociserver":
		return ociserver.New(ocimem.New(), nil)
	}
	return nil
}

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: registries distribution-2|go-containerregistry|ociserver FOLDER")
	}
	served := handler(os.Args[1], os.Args[2])
	if served == nil {
		log.Fatalf("there is no registry %q", os.Args[1])
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	log.Printf("listening on %v", listener.Addr())
	log.Fatal(http.Serve(listener, served))
}
