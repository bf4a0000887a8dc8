package cni_test

import (
	"errors"
	"io"
	"path/filepath"
	"slices"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/manxnet/manx/cni"
)

// A call that is repeated without manxd has not failed: nothing calls it an error in the log.
func TestNoAnswerIsNoErrorYet(t *testing.T) {
	var said []string
	p := &cni.Plugin{Getenv: func(string) string { return "DEL" }, Stdout: io.Discard,
		Log: func(_ *cni.Config, what string, fields ...any) {
			said = append(said, what)
			if slices.Contains(fields, any("error")) {
				t.Errorf("an error is logged: %s %v", what, fields)
			}
		},
		Backend: func(*cni.Config) cni.Backend { return cni.Socket(filepath.Join(t.TempDir(), "cni.sock")) }}
	err := p.Funcs(false).Del(&skel.CmdArgs{ContainerID: "c", IfName: "eth0",
		StdinData: []byte(`{"cniVersion": "1.0.0", "name": "n", "type": "calico", "ipam": {"type": "calico-ipam"}}`)})
	if !errors.Is(err, cni.ErrNoAnswer) || !slices.Equal(said, []string{"manxd does not answer"}) {
		t.Errorf("%v; the log has %q", err, said)
	}
}
