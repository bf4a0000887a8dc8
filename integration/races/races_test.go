package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Reports that the detector has written, and parts of them changed: known ones, and those that are not GoBGP's alone.
func TestJudge(t *testing.T) {
	t.Parallel()
	const start, calculate = "pkg/server.(*BgpServer).StartBgp", "internal/pkg/table.(*destination).implicitWithdraw"
	for _, c := range []struct {
		name, file string
		change     []string // pairs
		known      []string
		ok         bool
		text       string
	}{
		{"in GoBGP's goroutines", "gobgp", nil, []string{start}, true, "known data race of GoBGP: " + start +
			" (1 reports)"},
		{"not listed", "gobgp", nil, []string{calculate}, false, "DATA RACE: " + start +
			" and pkg/server.(*BgpServer).notifyBestWatcher"},
		{"not seen", "gobgp", nil, []string{start, calculate}, true,
			"not seen in this run (integration/races/known.txt is to shrink): " + calculate},
		{"called through the server's API", "api", nil, []string{calculate}, true, "known data race of GoBGP: " +
			calculate},
		{"called by another way", "api", []string{"(*BgpServer).ListPath", "listPath"}, []string{calculate}, false,
			"DATA RACE: "},
		{"a function of ours, called by GoBGP", "gobgp", []string{"pkg/server.(*BgpServer).notifyBestWatcher",
			"pkg/server.(*BgpServer).notifyBestWatcher()\n      x.go:1 +0x1\n" +
				"  github.com/manxnet/manx/bgp/speaker.callback"},
			[]string{start}, false, "DATA RACE: "},
		{"a stack is lost", "gobgp", []string{"Previous read", "Previous read at 0x1 by goroutine 1:\n" +
			"  [failed to restore the stack]\n\nwas"}, []string{start}, false, "DATA RACE: "},
		{"with the library that it changes", "grpc", nil, []string{"pkg/server.NewBgpServer google.golang.org/grpc"},
			true,
			"known data race of GoBGP: pkg/server.NewBgpServer google.golang.org/grpc (1 reports)"},
		{"of two functions", "gobgp", nil, []string{start + " pkg/server.(*BgpServer).notifyBestWatcher"}, true,
			"known data race of GoBGP: " + start + " pkg/server.(*BgpServer).notifyBestWatcher (1 reports)"},
		{"of another pair", "gobgp", nil, []string{start + " pkg/server.newAPIserver"}, false, "DATA RACE: "},
		{"with another library", "grpc", nil, []string{"pkg/server.NewBgpServer go.etcd.io/etcd"}, false,
			"DATA RACE: "},
		{"with us, through the library", "grpc", []string{"read at 0x00000569d5d6 by goroutine 261:\n",
			"read at 0x1 by goroutine 1:\n  github.com/manxnet/manx/proto/server.hook()\n      x.go:1 +0x1\n"},
			[]string{"pkg/server.NewBgpServer google.golang.org/grpc"}, false, "DATA RACE: "},
		{"of ours", "ours", nil, []string{start}, false,
			"DATA RACE: github.com/manxnet/manx/bgp/speaker.(*speakerRun).setSession and " +
				"github.com/manxnet/manx/bgp/speaker.(*speakerRun).soft"},
		{"of ours, listed", "ours", nil, []string{"github.com/manxnet/manx/bgp/speaker.(*speakerRun).soft"}, false,
			"DATA RACE: "},
	} {
		text, err := os.ReadFile(filepath.Join("testdata", c.file+".txt"))
		if err != nil {
			t.Fatal(err)
		}
		reports := parse(strings.NewReplacer(c.change...).Replace(string(text)))
		if len(reports) != 1 || len(reports[0].accesses) != 2 {
			t.Fatalf("%s: reports %q", c.name, reports)
		}
		var out strings.Builder
		if ok := compare(&out, reports, c.known); ok != c.ok || !strings.Contains(out.String(), c.text) {
			t.Errorf("%s: known %v, want %v and %q:\n%s", c.name, ok, c.ok, c.text, out.String())
		}
	}
}

// The list as it is kept names functions of GoBGP as reports are shortened.
func TestKnown(t *testing.T) {
	t.Parallel()
	names := functions(known)
	if len(names) == 0 || len(slices.Compact(slices.Sorted(slices.Values(names)))) != len(names) {
		t.Errorf("entries %q", names)
	}
	for _, name := range names {
		name, _, _ = strings.Cut(name, " ")
		if name != withoutClosure(name) || !strings.HasPrefix(name, "pkg/") &&
			!strings.HasPrefix(name, "internal/pkg/") {
			t.Errorf("entry %q is no function of GoBGP", name)
		}
	}
}

// The detector of this toolchain: a program with a race leaves a report that is found and not excused.
func TestRealReport(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("the race detector needs gcc:", err)
	}
	dir, reports := t.TempDir(), t.TempDir()
	program := filepath.Join(dir, "main.go")
	const source = "package main\n\nvar n int\n\nfunc main() {\n\tdone := make(chan bool)\n" +
		"\tgo func() { n++; done <- true }()\n\tn++\n\t<-done\n}\n"
	if err := os.WriteFile(program, []byte(source), 0o644); err != nil {
		t.Fatal(err)
	}
	run := exec.Command("go", "run", "-race", program)
	run.Env = append(os.Environ(), "CGO_ENABLED=1", "GORACE=exitcode=0 log_path="+filepath.Join(reports, "report"))
	if out, err := run.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	found, err := readReports(reports)
	if err != nil || len(found) != 1 {
		t.Fatalf("reports %v, %v", found, err)
	}
	if names, ours := found[0].accessFunctions(); !ours || !slices.Equal(names, []string{"main.main"}) {
		t.Errorf("blames %q, ours: %v", names, ours)
	}
	if err := os.WriteFile(filepath.Join(reports, "report.2"), []byte("race: limit on 8128 goroutines is exceeded\n"),
		0o644); err != nil {
		t.Fatal(err)
	}
	if found, err := readReports(reports); err == nil || !strings.Contains(err.Error(), "8128") {
		t.Errorf("a text without report: %v, %v", found, err)
	}
	if _, err := readReports(filepath.Join(reports, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no folder: %v", err)
	}
}
