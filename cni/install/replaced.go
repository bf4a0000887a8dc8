package install

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/manxnet/manx/datastore/safefile"
)

// Replaced lists the plugins of other programs that Install would replace: existing files of the same names with
// another content. A file that cannot be read counts.
func (b Binaries) Replaced() (paths []string, err error) {
	if b.Keep {
		return nil, nil
	}
	plugins, err := b.plugins()
	if err != nil {
		return nil, err
	}
	for _, p := range plugins {
		content, err := safefile.Read(p.source, longestProgram)
		if err != nil {
			return nil, fmt.Errorf("plugin %s: %w", p.name, err)
		}
		for _, dir := range b.To {
			path := filepath.Join(dir, p.name)
			have, err := safefile.Read(path, longestProgram)
			if !errors.Is(err, fs.ErrNotExist) && (err != nil || !bytes.Equal(have, content)) {
				paths = append(paths, path)
			}
		}
	}
	return paths, nil
}
