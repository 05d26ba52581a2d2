//go:build tools

// Package tools pins helm, with which tests install the chart of docs/deploy.
package tools

import _ "helm.sh/helm/v4/cmd/helm"
