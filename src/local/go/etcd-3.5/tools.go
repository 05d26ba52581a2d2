//go:build tools

// Package tools pins etcd 3.5, for an image of a real node: `operetta dev --node`.
package tools

import (
	_ "go.etcd.io/etcd/etcdctl/v3"
	_ "go.etcd.io/etcd/etcdutl/v3"
	_ "go.etcd.io/etcd/server/v3"
)
