package main_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/httpstream"
	"k8s.io/apimachinery/pkg/util/httpstream/spdy"
	"k8s.io/apimachinery/pkg/util/remotecommand"
)

// execution is a command in a container: its end of the three streams.
type execution struct {
	command               []string
	stdout, stderr, error io.WriteCloser
}

// end sends the exit code, as a kubelet does.
func (e execution) end(code int) {
	status := metav1.Status{Status: metav1.StatusSuccess}
	if code != 0 {
		status = metav1.Status{Status: metav1.StatusFailure, Reason: remotecommand.NonZeroExitCodeReason,
			Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{
				{Type: remotecommand.ExitCodeCauseType, Message: strconv.Itoa(code)}}}}
	}
	_ = json.NewEncoder(e.error).Encode(status)
}

// kubelet answers the API server's requests for pods/exec of one node.
type kubelet struct {
	mu      sync.Mutex
	run     func(execution)           // what a command does
	instead func(http.ResponseWriter) // answers without a command; may be nil
}

func (k *kubelet) does(run func(execution), instead func(http.ResponseWriter)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.run, k.instead = run, instead
}

// startKubelet serves a kubelet on a port of loopback, which it returns.
func startKubelet(t *testing.T, k *kubelet) int {
	t.Helper()
	s := httptest.NewTLSServer(k)
	t.Cleanup(s.Close)
	return s.Listener.Addr().(*net.TCPAddr).Port
}

func (k *kubelet) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	k.mu.Lock()
	run, instead := k.run, k.instead
	k.mu.Unlock()
	if !strings.HasPrefix(r.URL.Path, "/exec/kube-system/manx-node-") || !strings.HasSuffix(r.URL.Path, "/manxd") {
		http.Error(w, "unexpected "+r.URL.Path, http.StatusNotFound)
		return
	}
	if instead != nil {
		instead(w)
		return
	}
	if _, err := httpstream.Handshake(r, w, []string{remotecommand.StreamProtocolV4Name}); err != nil {
		return
	}
	opened := make(chan httpstream.Stream, 3)
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(s httpstream.Stream, replied <-chan struct{}) error {
		go func() { <-replied; opened <- s }()
		return nil
	})
	if conn == nil {
		return
	}
	defer conn.Close()
	e := execution{command: r.URL.Query()["command"]}
	for e.stdout == nil || e.stderr == nil || e.error == nil {
		select {
		case s := <-opened:
			switch s.Headers().Get("streamType") {
			case "stdout":
				e.stdout = s
			case "stderr":
				e.stderr = s
			case "error":
				e.error = s
			}
		case <-conn.CloseChan():
			return
		}
	}
	run(e)
	for _, s := range []io.Closer{e.stdout, e.stderr, e.error} {
		s.Close() //nolint:errcheck // the other end may be gone
	}
}

// manxctlOf runs the real manxctl with the socket of a daemon, as in the daemon's container.
func manxctlOf(socket string) func(execution) {
	return func(e execution) {
		if e.command[0] != "/manxctl" {
			e.end(127)
			return
		}
		cmd := exec.Command(binary, append([]string{"--socket=" + socket}, e.command[1:]...)...)
		cmd.Env = []string{"TZ=UTC"}
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		err := cmd.Run()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			errs.WriteString(err.Error())
		}
		_, _ = e.stdout.Write(out.Bytes())
		_, _ = e.stderr.Write(errs.Bytes())
		e.end(cmd.ProcessState.ExitCode())
	}
}
