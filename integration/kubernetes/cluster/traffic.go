package cluster

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strings"
	"time"
)

// count of requests: see the package traffic.
type count struct {
	Sent, Lost int
	Reasons    []string
}

// flow is a running program traffic.
type flow struct {
	name           string
	cmd            *exec.Cmd
	stdin          io.WriteCloser
	stdout, stderr bytes.Buffer
}

// startFlow starts to send pings, TCP requests on new connections and TCP requests on one connection, 100 times a
// second each. cmd runs the program traffic at the start of the flow.
func startFlow(name string, cmd *exec.Cmd) (*flow, error) {
	f := &flow{name: name, cmd: cmd}
	cmd.Stdout, cmd.Stderr = &f.stdout, &f.stderr
	var err error
	if f.stdin, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	return f, cmd.Start()
}

// stop ends the flow and returns the counts, by kind.
func (f *flow) stop() (map[string]count, error) {
	_ = f.stdin.Close()
	done := make(chan error, 1)
	go func() { done <- f.cmd.Wait() }()
	select {
	case err := <-done:
		if err != nil {
			return nil, fmt.Errorf("traffic %s: %w: %s", f.name, err, f.stderr.String())
		}
	case <-time.After(time.Minute):
		_ = f.cmd.Process.Kill()
		return nil, fmt.Errorf("traffic %s does not end: %s", f.name, f.stderr.String())
	}
	var counts map[string]count
	if err := json.Unmarshal(f.stdout.Bytes(), &counts); err != nil {
		return nil, fmt.Errorf("traffic %s: %w: %s", f.name, err, f.stdout.String())
	}
	return counts, nil
}

// end ends flows at once: each waits for late replies. stop returns their counts.
func end(flows []*flow) {
	for _, f := range flows {
		_ = f.stdin.Close()
	}
}

// flows go on during a disturbance of the cluster.
func (w *World) startFlows() ([]*flow, error) {
	server, err := w.podIP("server")
	if err != nil {
		return nil, err
	}
	service, err := w.Kubectl("get", "service", "echo", "-o", "jsonpath={.spec.clusterIP}")
	if err != nil {
		return nil, err
	}
	direct := []string{"-ping=" + server, "-tcp=" + server + ":7000"}
	outside, err := w.targetOutside(direct)
	if err != nil {
		return nil, err
	}
	var flows []*flow
	for _, f := range []struct {
		name string
		cmd  *exec.Cmd
	}{
		{"from pod client on node1 to pod server on node2",
			w.KubectlCommand(append([]string{"exec", "-i", "client", "--", "/traffic"}, direct...)...)},
		{"from pod client on node1 to Service echo",
			w.KubectlCommand("exec", "-i", "client", "--", "/traffic", "-tcp="+service+":7000")},
		{"from outside to pod server on node2", w.outside(w.Traffic(), outside...)},
	} {
		running, err := startFlow(f.name, f.cmd)
		if err != nil {
			return flows, err
		}
		flows = append(flows, running)
	}
	time.Sleep(2 * time.Second) // some traffic before the disturbance
	return flows, nil
}

// targetOutside returns the arguments of traffic from outside to pod server: those of direct traffic, or, where hosts
// outside have no route to pods, the port of node1 for its Service.
func (w *World) targetOutside(direct []string) ([]string, error) {
	if w.hasBGP() {
		return direct, nil
	}
	port, err := w.Kubectl("get", "service", "echo", "-o", "jsonpath={.spec.ports[0].nodePort}")
	return []string{"-tcp=" + net.JoinHostPort(w.Worker("node1").Addresses()[0], port)}, err
}

// under calls do while traffic flows. No request may get lost.
func (w *World) under(what string, do func() error) error {
	flows, err := w.startFlows()
	return w.lossless(what, flows, err, do)
}

// underFlows is under with the given programs as senders.
func (w *World) underFlows(what string, do func() error, programs map[string]*exec.Cmd) error {
	var flows []*flow
	var err error
	for name, cmd := range programs {
		f, startErr := startFlow(name, cmd)
		if startErr != nil {
			err = startErr
			break
		}
		flows = append(flows, f)
	}
	time.Sleep(2 * time.Second) // some traffic before the disturbance
	return w.lossless(what, flows, err, do)
}

// lossless calls do if the flows have started, ends the flows and checks their counts.
func (w *World) lossless(what string, flows []*flow, err error, do func() error) error {
	if err == nil {
		err = do()
	}
	if err == nil {
		time.Sleep(2 * time.Second) // late replies come now
	}
	var lines, lost []string
	end(flows)
	for _, f := range flows {
		counts, stopErr := f.stop()
		if stopErr != nil {
			lost = append(lost, stopErr.Error())
		}
		for _, kind := range []string{"ping", "connections", "stream"} {
			n := counts[kind]
			if n.Sent == 0 {
				continue
			}
			line := fmt.Sprintf("%-48s %-12s %6d sent, %d lost", f.name, kind, n.Sent, n.Lost)
			lines = append(lines, line)
			if n.Lost > 0 || n.Sent < 100 {
				lost = append(lost, fmt.Sprintf("%s: %s", line, strings.Join(n.Reasons, "; ")))
			}
		}
	}
	w.show("traffic during "+what, strings.Join(lines, "\n"))
	switch {
	case err != nil:
		return err
	case len(lost) > 0:
		return fmt.Errorf("during %s:\n%s", what, strings.Join(lost, "\n"))
	case len(lines) == 0:
		return fmt.Errorf("nothing was sent during %s", what)
	}
	return nil
}
