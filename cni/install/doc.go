// Package install installs the CNI plugins and their configuration on a host, and removes them. Every file is written
// under a temporary name and renamed, so that a runtime reads either the old or the whole new file, whenever the
// process dies.
package install
