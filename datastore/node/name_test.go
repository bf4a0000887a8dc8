package node

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestName(t *testing.T) {
	file := filepath.Join(t.TempDir(), "nodename")
	if err := os.WriteFile(file, []byte("from-file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	host := func() (string, error) { return "Host.Example", nil }
	for _, tc := range []struct {
		rule       string
		s          NameSources
		name, from string
		err        string
	}{
		{rule: "configured first", s: NameSources{Configured: "n1", File: file, Env: "ENV", HostName: host}, name: "n1",
			from: "NODENAME"},
		{rule: "then the file", s: NameSources{File: file, Env: "ENV", HostName: host}, name: "from-file", from: file},
		{rule: "then HOSTNAME in lower case", s: NameSources{File: file + "-none", Env: "ENV.Example", HostName: host},
			name: "env.example", from: "HOSTNAME"},
		{rule: "then the host's name in lower case", s: NameSources{HostName: host}, name: "host.example",
			from: "host name"},
		{rule: "a name that cannot be", s: NameSources{Configured: "a/b"}, err: `"a/b" cannot be a node's name`},
		{rule: "no name at all", s: NameSources{HostName: func() (string, error) { return "", errors.New("boom") }},
			err: "boom; set NODENAME"},
		{rule: "an unreadable file is not passed over", s: NameSources{File: t.TempDir(), HostName: host},
			err: "read the node's name"},
	} {
		t.Run(tc.rule, func(t *testing.T) {
			name, from, err := Name(tc.s)
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("error %v want %s", err, tc.err)
				}
				return
			}
			if err != nil || name != tc.name || from != tc.from {
				t.Errorf("got %q from %q, %v", name, from, err)
			}
		})
	}
}
