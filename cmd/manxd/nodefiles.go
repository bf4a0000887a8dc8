package main

import (
	"context"
	"path/filepath"

	"github.com/manxnet/manx/datastore/node"
)

// nodeFiles writes the files that other programs of the host expect. The node does its work without them, as on a disk
// that is full: there is a notice, and another attempt.
type nodeFiles struct {
	node.Files
	name string
}

func newNodeFiles(j *joined) nodeFiles {
	return nodeFiles{node.Files{Name: j.options.node.nameFile,
		Folders: []string{"/var/run/calico", filepath.Dir(j.options.node.nameFile),
			filepath.Dir(j.options.host.mtuFile)}}, j.name}
}

func (f nodeFiles) Name() string { return "node-files" }

// Run implements part.Part.
func (f nodeFiles) Run(context.Context) error { return f.Write(f.name) }
