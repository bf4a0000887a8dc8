package main

import (
	"context"
	"path/filepath"

	"github.com/manxnet/manx/daemon/deps"
	"github.com/manxnet/manx/datastore/node"
)

// nodeFiles writes the files that other programs of the host expect. The node does its work without them, as on a disk
// that is full: there is a notice, and another attempt.
type nodeFiles struct {
	node.Files
	name string
}

func newNodeFiles(d deps.Deps, nameFile, mtuFile string) nodeFiles {
	folders := []string{"/var/run/calico", filepath.Dir(nameFile)}
	if mtuFile != "" {
		folders = append(folders, filepath.Dir(mtuFile))
	}
	return nodeFiles{node.Files{Name: nameFile, Folders: folders}, d.Node.Name}
}

func (f nodeFiles) Name() string { return "node-files" }

// Run implements part.Part.
func (f nodeFiles) Run(context.Context) error { return f.Write(f.name) }
