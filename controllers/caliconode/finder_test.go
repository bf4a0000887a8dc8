package caliconode

import (
	"encoding/base64"
	"net"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// A socket is one of calico-node if BIRD greets there. The file stays behind a killed daemon, other programs may serve
// something else, or nothing, and Manx itself can serve the socket in BIRD's place.
func TestSockets(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		name, greeting string
		want           bool
	}{
		{"bird", "0001 BIRD v0.3.3+birdv1.6.8 ready.\n", true}, {"manx", "0001 BIRD 1.6.8-manx ready.\n", false},
		{"other", "hello\n", false}, {"silent", "", false}, {"endless", string(make([]byte, 1<<20)), false},
	} {
		path := filepath.Join(dir, c.name)
		l, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			for conn, err := l.Accept(); err == nil; conn, err = l.Accept() {
				go func() { _, _ = conn.Write([]byte(c.greeting)) }()
			}
		}()
		f := Finder{Sockets: []string{filepath.Join(dir, "absent"), path}}
		if active, err := f.Find(t.Context()); err != nil || (active == "the BGP daemon behind "+path) != c.want {
			t.Errorf("%s: %q, %v", c.name, active, err)
		}
		l.(*net.UnixListener).SetUnlinkOnClose(false)
		_ = l.Close()
		if active, err := f.Find(t.Context()); err != nil || active != "" {
			t.Errorf("%s, without a listener: %q, %v", c.name, active, err)
		}
	}
}

// The own pod, of a manifest of calico-node with another image, is known by the token that the kubelet requests for it.
func TestOwnPod(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	for payload, want := range map[string]bool{`{"kubernetes.io":{"pod":{"name":"calico-node-x","uid":"u1"}}}`: true,
		`{"kubernetes.io":{"pod":{"uid":"u2"}}}`: false, `{"sub":"u1"}`: false, `u1`: false} {
		token := "h." + base64.RawURLEncoding.EncodeToString([]byte(payload)) + ".s"
		if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
			t.Fatal(err)
		}
		f := NewFinder("n1", nil, &rest.Config{BearerTokenFile: file})
		if got := f.Self(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u1"}}); got != want {
			t.Errorf("%s: %v", payload, got)
		}
		if f.Self(&corev1.Pod{}) {
			t.Errorf("%s: a pod without a UID is the own one", payload)
		}
	}
}
