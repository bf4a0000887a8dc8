package node

import (
	"errors"
	"fmt"

	"github.com/manxnet/manx/datastore/safefile"
)

// Files are the files and folders that other programs expect on a node.
type Files struct {
	Name    string   // path of the nodename file; empty for none
	Folders []string // made if absent
}

// Write makes those that are missing or differ. name is the node's. The CNI plugin compares every byte of the nodename
// file: it has no newline. The error names each file and folder that could not be written; the others are.
func (f Files) Write(name string) error {
	var errs []error
	for _, path := range f.Folders {
		d, err := safefile.Make(path, 0o755)
		if err != nil {
			errs = append(errs, fmt.Errorf("make the folder %s that Calico's plugins use: %w", path, err))
			continue
		}
		_ = d.Close()
	}
	if f.Name != "" {
		if err := safefile.Replace(f.Name, []byte(name), 0o644); err != nil {
			errs = append(errs, fmt.Errorf("write the nodename file %s: %w", f.Name, err))
		}
	}
	return errors.Join(errs...)
}
