// Package stock builds programs of other projects that tests drive, each at one version.
package stock

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Program is a command in a Go module of another project.
type Program struct {
	Name    string // of the binary
	Package string // import path of its main package
	Version string // with the leading v
}

// The programs that Manx promises to work with.
var (
	Gobgp3    = Program{"gobgp", "github.com/osrg/gobgp/v3/cmd/gobgp", "v3.37.0"}
	Gobgp4    = Program{"gobgp", "github.com/osrg/gobgp/v4/cmd/gobgp", "v4.8.0"}
	HostLocal = Program{"host-local", "github.com/containernetworking/plugins/plugins/ipam/host-local", "v1.9.1"}
	Portmap   = Program{"portmap", "github.com/containernetworking/plugins/plugins/meta/portmap", "v1.9.1"}
	Bandwidth = Program{"bandwidth", "github.com/containernetworking/plugins/plugins/meta/bandwidth", "v1.9.1"}
	Tuning    = Program{"tuning", "github.com/containernetworking/plugins/plugins/meta/tuning", "v1.9.1"}
	PTP       = Program{"ptp", "github.com/containernetworking/plugins/plugins/main/ptp", "v1.9.1"}
	SBR       = Program{"sbr", "github.com/containernetworking/plugins/plugins/meta/sbr", "v1.9.1"}
	Grpcurl   = Program{"grpcurl", "github.com/fullstorydev/grpcurl/cmd/grpcurl", "v1.9.3"}
)

// Path returns the path of the program. The first call builds it, in a separate module because its dependencies differ
// from ours, and keeps it in the user's cache: manx-test/NAME-VERSION. Later calls use the cache.
func (p Program) Path() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	path := filepath.Join(cache, "manx-test", p.Name+"-"+p.Version[1:])
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if err := p.build(path); err != nil {
		return "", fmt.Errorf("build %s %s: %w", p.Package, p.Version, err)
	}
	return path, nil
}

func (p Program) build(path string) error {
	dir, err := os.MkdirTemp("", "manx-stock")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"mod", "init", "stock"},
		{"get", p.Package + "@" + p.Version},
		{"build", "-o", "program", p.Package},
	} {
		cmd := exec.Command("go", args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("go %v: %w: %s", args, err, out)
		}
	}
	return install(filepath.Join(dir, "program"), path)
}

// install puts the program in its place in one step: several tests may build it at the same time.
func install(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(to), ".new-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	if _, err = f.Write(data); err == nil {
		err = f.Chmod(0o755)
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	return os.Rename(f.Name(), to)
}
