package peers_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/manxnet/manx/integration/peers"
)

// program is the row of a name.
func program(t *testing.T, name string) peers.Program {
	t.Helper()
	i := slices.IndexFunc(peers.All, func(p peers.Program) bool { return p.Name == name })
	if i < 0 {
		t.Fatalf("no row for %s", name)
	}
	return peers.All[i]
}

// fake puts a shell script in the place of a program and returns its path.
func fake(t *testing.T, name, script string) string {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return path
}

// The error names an unsupported program that is first in PATH, with the remedy.
func TestWrongProgramIsNamed(t *testing.T) {
	for _, c := range []struct {
		name, prints string
		texts        []string // nothing: it is right
	}{
		{"bird", "BIRD version 1.6.8", []string{"PATH is version 1.6.8", "want version 2, 2.0.12 or later",
			"apt-get install bird2", "remove the other one or put it behind in PATH"}},
		{"bird", "BIRD version 2.0.7", []string{"PATH is version 2.0.7", "2.0.12 or later"}},
		{"bird", "BIRD version 3.0.1", []string{"PATH is version 3.0.1", "version 2"}},
		{"bird", "BIRD version 2.0.12", nil},
		{"bird", "BIRD version 2.17.1", nil},
		{"gobgp", "gobgp version 4.1.0", []string{"PATH is version 4.1.0", "want version 3", "apt-get install gobgpd",
			"another gRPC service"}},
		{"gobgp", "gobgp version 3.37.0", nil},
		{"nft", "nftables v0.9.8 (E.D.S.)", []string{"PATH is version 0.9.8", "1.0.6 or later", "install nftables"}},
		{"nft", "nftables v1.0.6 (Lester Gooch #5)", nil},
		{"bgpd", "bgpd version 8.4.4", []string{"is not the program bgpd of Debian's package openbgpd"}},
		{"bgpd", "OpenBGPD 7.7", nil},
		{"exabgp", "ExaBGP : 3.4.13", []string{"PATH is version 3.4.13", "install exabgp"}},
		{"etcd", "etcd Version: 3.3.25", []string{"PATH is version 3.3.25", "install etcd-server"}},
		{"ip", "ip utility, iproute2-6.1.0, libbpf 1.1.0", nil},
		{"ip", "ip utility, iproute2-ss200127", []string{"is not the program ip", "ss200127"}},
		{"ip", "BusyBox v1.35.0 (Debian 1:1.35.0-4) multi-call binary.", []string{"is not the program ip",
			"BusyBox", "install iproute2"}},
		{"ping", "ping from iputils 20221126", nil},
		{"ping", "ping (GNU inetutils) 2.4", []string{"is not the program ping", "install iputils-ping"}},
		{"nft", "", []string{"is not the program nft", `prints ""`}},
	} {
		t.Run(c.name+" "+c.prints, func(t *testing.T) {
			path := fake(t, c.name, "echo '"+c.prints+"'")
			err := program(t, c.name).Check()
			if len(c.texts) == 0 {
				if err != nil {
					t.Errorf("refused: %v", err)
				}
				return
			}
			for _, want := range c.texts {
				want = strings.ReplaceAll(want, "PATH is", path+" is")
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("the error %v lacks %q", err, want)
				}
			}
		})
	}
}

func TestBrokenAndMissingProgramsAreNamed(t *testing.T) {
	path := fake(t, "nft", "echo no library >&2; exit 127")
	if err := program(t, "nft").Check(); err == nil || !strings.Contains(err.Error(), path+" --version fails") ||
		!strings.Contains(err.Error(), "no library") {
		t.Errorf("a program that does not start: %v", err)
	}
	t.Setenv("PATH", t.TempDir())
	for _, p := range peers.All {
		if filepath.IsAbs(p.Name) {
			continue
		}
		want := fmt.Sprintf("%s is not installed; want version", p.Name)
		if err := p.Check(); err == nil || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), "apt-get install "+p.Package) {
			t.Errorf("%s is missing: %v", p.Name, err)
		}
	}
	if err := peers.Usable("no-such-program"); err == nil || err.Error() != "no-such-program is not installed" {
		t.Errorf("a program without a row: %v", err)
	}
}

// `make test` checks the programs before it builds or tests anything, and stops.
func TestMakeStopsAtAWrongBIRD(t *testing.T) {
	for _, needed := range []string{"make", "go"} {
		if _, err := exec.LookPath(needed); err != nil {
			t.Skipf("%s is not installed", needed)
		}
	}
	path := fake(t, "bird", "echo BIRD version 1.6.8 >&2")
	out, err := exec.Command("go", "run", "./check").CombinedOutput()
	if err == nil || !strings.Contains(string(out), path+" is version 1.6.8; want version 2, 2.0.12 or later") {
		t.Errorf("the check ends with %v and prints\n%s", err, out)
	}
	// A dry run, in the order of the commands: the real one would run these tests in these tests, if it failed.
	out, err = exec.Command("make", "-n", "-C", "../..", "--no-print-directory", "test").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	check := strings.Index(string(out), "./integration/peers/check")
	for _, later := range []string{"go build", "integration/run-tests"} {
		if at := strings.Index(string(out), later); check < 0 || at < check {
			t.Errorf("%q is not after the check of the programs in\n%s", later, out)
		}
	}
}
