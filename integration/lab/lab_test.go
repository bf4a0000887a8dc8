package lab

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	for _, program := range []string{"ip", "ping", "bird", "birdc"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%s is not installed", program)
		}
	}
}

func TestUnderlayCarriesTraffic(t *testing.T) {
	needRoot(t)
	for _, routed := range []bool{false, true} {
		t.Run(fmt.Sprintf("routed=%v", routed), func(t *testing.T) {
			l, err := New(Spec{Name: fmt.Sprintf("u%d", os.Getpid()), Routed: routed, IPv6: true, ToRs: 2,
				Nodes: []NodeSpec{{"n1", 0}, {"n2", 0}, {"n3", 1}}})
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := l.Close(); err != nil {
					t.Error(err)
				}
				if out, _ := command("ip", "netns", "list"); strings.Contains(out, l.Spec.Name+"-") {
					t.Errorf("namespaces are left behind:\n%s", out)
				}
			}()
			for _, to := range []string{"n2", "n3"} {
				if err := Eventually(time.Minute,
					func() error { return Ping(l.Node("n1").Namespace, l.Node(to).IP4) }); err != nil {
					t.Error(err)
				}
				if err := Eventually(time.Minute,
					func() error { return Ping(l.Node("n1").Namespace, l.Node(to).IP6) }); err != nil {
					t.Error(err)
				}
			}
			err = Eventually(time.Minute, func() error {
				out, err := l.ToRs[1].Birdc("show", "protocols")
				if err == nil && strings.Count(out, "BGP") != 6 {
					err = fmt.Errorf("want a session for each node and family:\n%s", out)
				}
				return err
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// TestKilledLabIsRemovedByTheNext builds a lab in a process that is killed.
func TestKilledLabIsRemovedByTheNext(t *testing.T) {
	needRoot(t)
	name := fmt.Sprintf("k%d", os.Getpid())
	if os.Getenv("LAB_TO_BE_KILLED") != "" {
		if _, err := New(Spec{Name: os.Getenv("LAB_TO_BE_KILLED"), Nodes: []NodeSpec{{"n1", 0}}}); err != nil {
			t.Fatal(err)
		}
		fmt.Println("built")
		select {}
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestKilledLabIsRemovedByTheNext$")
	cmd.Env = append(os.Environ(), "LAB_TO_BE_KILLED="+name)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 64)
	if _, err := out.Read(buf); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if out, _ := command("ip", "netns", "list"); !strings.Contains(out, name+"-n1") {
		t.Fatalf("the killed lab should have left its namespaces:\n%s", out)
	}
	if err := removeStale(); err != nil {
		t.Fatal(err)
	}
	if out, _ := command("ip", "netns", "list"); strings.Contains(out, name+"-") {
		t.Errorf("namespaces are left behind:\n%s", out)
	}
}

// TestPatience waits longer on a machine that needs patience.
func TestPatience(t *testing.T) {
	begin := time.Now()
	late := func() error {
		if time.Since(begin) < 300*time.Millisecond {
			return errors.New("too early")
		}
		return nil
	}
	t.Setenv("MANX_PATIENCE", "4")
	if err := Eventually(100*time.Millisecond, late); err != nil {
		t.Error(err)
	}
	for value, want := range map[string]int{"": 1, "0": 1, "x": 1, "3": 3} {
		t.Setenv("MANX_PATIENCE", value)
		if got := Patience(); got != want {
			t.Errorf("MANX_PATIENCE=%s is %d, want %d", value, got, want)
		}
	}
}
