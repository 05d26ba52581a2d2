// CoreDNS with the plugins that a real node needs: `operetta dev --node`. All of its plugins take twice as long to build.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"

	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/template"
)

func main() {
	// The order in which plugins see a query.
	dnsserver.Directives = []string{"bind", "ready", "errors", "kubernetes", "template"}
	coremain.Run()
}
