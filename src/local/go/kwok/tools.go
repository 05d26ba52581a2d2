//go:build tools

// Package tools pins kwok, whose fake nodes run the pods of `operetta dev --cluster local`.
// It is a module of its own, for kwok builds against other Kubernetes libraries than the
// control plane does.
package tools

import _ "sigs.k8s.io/kwok/cmd/kwok"
