package node

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
)

// NameSources are the sources of a node's name.
type NameSources struct {
	Configured string // NODENAME
	File       string // path of the nodename file; empty for none
	HostName   func() (string, error)
	Env        string // HOSTNAME
}

// Name returns the node's name: as configured, else as an earlier run wrote it to the file, else the host's. from names
// the source. The name must never change without a new configuration: all of the node's objects in the datastore depend
// on it.
func Name(s NameSources) (name, from string, err error) {
	if name := strings.TrimSpace(s.Configured); name != "" {
		return name, "NODENAME", checkName(name)
	}
	if s.File != "" {
		b, err := os.ReadFile(s.File)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", "", fmt.Errorf("read the node's name: %w", err)
		}
		if name := strings.TrimSpace(string(b)); name != "" {
			return name, s.File, checkName(name)
		}
	}
	if name := strings.ToLower(strings.TrimSpace(s.Env)); name != "" {
		return name, "HOSTNAME", checkName(name)
	}
	host := s.HostName
	if host == nil {
		host = os.Hostname
	}
	name, err = host()
	if err != nil {
		return "", "", fmt.Errorf("no node name is set and the host has none: %w; set NODENAME", err)
	}
	name = strings.ToLower(strings.TrimSpace(name))
	return name, "host name", checkName(name)
}

func checkName(name string) error {
	valid := name != "" && len(name) <= 253
	for i, r := range name {
		letter := r >= 'a' && r <= 'z' || r >= '0' && r <= '9'
		valid = valid && (letter || (r == '-' || r == '.') && i > 0 && i < len(name)-1)
	}
	if !valid {
		return fmt.Errorf("%q cannot be a node's name: want at most 253 of a-z, 0-9, \"-\" and \".\", with a letter "+
			"or digit first and last; set NODENAME", name)
	}
	return nil
}
